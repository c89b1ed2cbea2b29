"""`flstream simulate --resume` goes on with the right run, or says why not."""

import json
import os
from pathlib import Path

import pytest
from cli_support import Flstream, WriteJob


@pytest.mark.nightly
def test_a_run_that_was_not_begun_is_started_and_a_finished_one_is_left_as_it_is(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    job = write_job()
    started = flstream("simulate", job, "--resume", "--quiet")
    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
    [run] = (tmp_path / "runs").iterdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    again = flstream("simulate", job, "--resume")
    assert (again.returncode, again.stderr) == (0, "")
    assert f"nothing is left to do: the run in {run} is finished" in again.stdout
    assert "finished after 2 rounds" in again.stdout
    document = flstream("simulate", job, "--resume", "--run-dir", run, "--json")
    assert json.loads(document.stdout) == json.loads((run / "summary.json").read_text())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.nightly
def test_another_job_or_folder_and_a_damaged_journal_are_refused(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    job = write_job()
    assert flstream("simulate", job, "--run-dir", "run", "--resume", "--quiet").returncode == 0
    words = ("--set", "clients.count=3", "--set", "seed=8")
    other = flstream("simulate", job, "--run-dir", "run", "--resume", *words)
    assert (other.returncode, other.stdout) == (2, "")
    assert "seed is 7 there and 8 here; clients.count is 2 there and 3 here" in other.stderr
    folder = flstream("simulate", job, "--run-dir", "job", "--resume")
    assert (folder.returncode, folder.stdout) == (2, "")
    assert "job is not a run directory" in folder.stderr
    assert sorted(os.listdir(job.parent)) == ["client.py", "job.conf", "model.py"]

    events = tmp_path / "run" / "events.jsonl"
    first, _, *rest = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([first, b"junk\n", *rest]))
    damaged = flstream("simulate", job, "--run-dir", "run", "--resume")
    assert (damaged.returncode, damaged.stdout) == (2, "")
    assert "run/events.jsonl, line 2, is damaged" in damaged.stderr
    assert "Traceback" not in damaged.stderr


def test_a_run_that_another_process_is_in_is_refused(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    from flstream.runs.run_directory import RunDirectory

    job = write_job()
    with RunDirectory.create("mini", tmp_path / "run").in_use():
        refused = flstream("simulate", job, "--run-dir", "run", "--resume")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is still going on" in refused.stderr


@pytest.mark.nightly
def test_a_job_may_be_moved_and_its_code_must_be_as_it_was(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    job = write_job()
    assert flstream("simulate", job, "--run-dir", "run", "--quiet").returncode == 0
    moved = job.parent.rename(tmp_path / "moved")
    resumed = flstream("simulate", moved, "--run-dir", "run", "--resume")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    with (moved / "client.py").open("a") as file:
        file.write("# another\n")
    refused = flstream("simulate", moved, "--run-dir", "run", "--resume")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "client.py was changed since the run began (digest " in refused.stderr
    assert "put back what it was made with, or leave out --resume" in refused.stderr
