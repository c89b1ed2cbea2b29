"""What a bench leaves if it is asked to: a picture, and files that are whole or not there."""

import os

import pytest
from bench_results import make_plan, make_results

from flstream.errors import UsageError
from flstream.report.bench.files import PICTURES, Target
from flstream.report.bench.plot import draw_memory


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_is_drawn_of_what_was_run(kind, tmp_path):
    plan = make_plan(chunk_sizes=[1 << 20, 2 << 20])
    path = tmp_path / "plot"
    draw_memory(plan, make_results(plan, native_fits=False), path, kind)
    head = path.read_bytes()[:200]
    assert {".png": b"PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[kind] in head


def test_the_picture_names_each_line_and_the_model(tmp_path):
    plan = make_plan()
    path = tmp_path / "plot.svg"
    draw_memory(plan, make_results(plan, native_fits=False), path, ".svg")
    text = path.read_text()
    for label in ("the model 1 GiB", "pull server 16 MiB", "file client", "needs about 41 GiB"):
        assert label in text


def test_a_picture_can_be_drawn_where_nothing_was_run(tmp_path):
    plan = make_plan(modes=["native"])
    draw_memory(plan, make_results(plan, native_fits=False), tmp_path / "plot", ".png")
    assert (tmp_path / "plot").stat().st_size > 1000


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("before")

    def fail(temporary):
        temporary.write_text("half")
        raise KeyboardInterrupt

    target = Target("--json", path)
    with pytest.raises(KeyboardInterrupt):
        target.write(fail)
    assert path.read_text() == "before"
    target.write(lambda temporary: temporary.write_text("after"))
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        Target("--json", pipe).write(lambda path: path.write_text("figures"))
        assert os.read(reader, 100) == b"figures"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["absent/out.json", ".", "file/out.json"])
def test_what_cannot_be_written_is_refused_before_anything_is_measured(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--json"):
        Target("--json", tmp_path / name)
