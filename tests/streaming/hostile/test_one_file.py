"""Two downloads into one file, in two processes: one has it, and the other is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSink
from flstream.model.layout import Layout

SCRIPT = Path(__file__).with_name("resuming.py")


@pytest.fixture
def downloading(tmp_path):
    """Starts a download of a value into one path; it waits half-way for a line."""
    processes = []

    def start(value):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "model.safetensors"), str(value)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_of_two_that_resume_one_file_the_second_is_refused_and_nothing_is_mixed(
    tmp_path, downloading
):
    path = tmp_path / "model.safetensors"
    first = downloading(1)
    assert first.stdout.readline() == "half\n"
    second, _ = downloading(2).communicate("", timeout=60)
    assert second.splitlines() == [
        f"{path} cannot be written: someone else is writing it now; wait for that to end, or "
        "choose another path",
        "aborted",
    ]
    told, _ = first.communicate("\n", timeout=60)
    assert told.splitlines() == ["ok", "finished"]
    assert set(load_file(path)["w"]) == {1}


def test_a_file_that_was_given_up_can_be_resumed_with_another_model(tmp_path, downloading):
    path = tmp_path / "model.safetensors"
    first = downloading(1)
    assert first.stdout.readline() == "half\n"
    first.kill()
    first.wait()
    second = downloading(2)
    assert second.stdout.readline() == "half\n"
    told, _ = second.communicate("\n", timeout=60)
    assert told.splitlines() == ["ok", "finished"]
    assert set(load_file(path)["w"]) == {2}


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_written_is_not_written_by_another(tmp_path, resume):
    layout = Layout.of([("w", "F32", (4,))])
    path = tmp_path / "model.safetensors"
    with FileSink(path, layout) as sink:
        with pytest.raises(CheckpointError, match="someone else is writing it now"):
            FileSink(path, layout, resume=resume)
        sink.write(0, memoryview(bytes(16)))
        sink.finish()
    with FileSink(path, layout, resume=resume) as sink:
        sink.write(0, memoryview(b"\1" * 16))
        sink.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_a_link_leads_to_is_not_written(tmp_path, link, resume):
    other, path = tmp_path / "other", tmp_path / "m.safetensors"
    other.write_bytes(b"somebody's")
    getattr(path.with_name("m.safetensors.tmp"), link)(other)
    with FileSink(path, Layout.of([("w", "F32", (4,))]), resume=resume) as sink:
        sink.write(0, memoryview(bytes(16)))
        sink.finish()
    assert other.read_bytes() == b"somebody's"
    assert not path.is_symlink()
    assert load_file(path)["w"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("resume", [False, True])
def test_a_layout_that_no_file_can_have_leaves_none(tmp_path, resume):
    layout = Layout.of([("w", "U8", (2**63 - 1,))])
    with pytest.raises(CheckpointError, match=r"needs .* bytes of disk: no file may have as many"):
        FileSink(tmp_path / "model.safetensors", layout, resume=resume)
    assert not list(tmp_path.iterdir())
