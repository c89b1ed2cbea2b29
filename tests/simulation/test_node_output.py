"""What nodes print comes into the files of the job's own sites and workers, and into no others."""

import os

import pytest

from flstream.engines.node_messages import Output
from flstream.job import make_job
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.node_output import NodeOutput


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create("run", tmp_path / "run")


@pytest.fixture
def output(run, tmp_path):
    (tmp_path / "model.py").write_text("def build():\n    return {}\n")
    (tmp_path / "client.py").write_text("")
    values = {
        "name": "run",
        "rounds": 1,
        "clients": {"count": 2},
        "model": {"factory": "model:build"},
        "train": {"script": "client.py"},
    }
    return NodeOutput(make_job(values, tmp_path, "a test"), run)


def test_lines_are_added_to_logs_and_a_split_takes_the_place_of_the_one_before(output, run):
    for data in (b"one\n", b"two\n"):
        output.take(Output("site log", "site-2", data))
        output.take(Output("worker log", "worker-1", data))
        output.take(Output("split", "site-1", data))
    assert run.site_log("site-2").read_text() == run.log("worker-1").read_text() == "one\ntwo\n"
    assert (run.site("site-1") / "split.json").read_text() == "two\n"
    assert len(os.listdir(run.site("site-1"))) == 1


def test_names_that_are_none_of_the_job_write_nothing_and_no_link_is_followed(
    output, run, tmp_path
):
    run.site("site-1").mkdir()
    run.site_log("site-1").symlink_to(tmp_path / "elsewhere")
    before = sorted(run.path.parent.rglob("*"))
    for kind, names in {
        "worker log": ["server", "../x", "worker-3"],
        "site log": ["site-3", "../site-1", "site-1"],
        "split": ["site-1/state"],
    }.items():
        for name in names:
            output.take(Output(kind, name, b"x"))
    assert sorted(run.path.parent.rglob("*")) == before
