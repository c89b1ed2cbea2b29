"""`flstream report` rebuilds and compares; `flstream simulate` ends with a report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import Flstream, WriteJob, environment

from flstream.report.console import make_console
from flstream.report.html import run_page
from flstream.report.html.run_end import leave_report
from flstream.runs.run_directory import RunDirectory

MINE = "<h1>mine</h1>"
STOPPED_WHILE_DRAWING = """
import os, signal, sys
from flstream.__main__ import main
from flstream.report.html import run_page
run_page.write_report = lambda path: os.kill(os.getpid(), signal.SIGTERM)
sys.argv = ["flstream", "simulate", "job", "--run-dir", "run", "--json"]
main()
"""


def a_run(folder: Path) -> Path:
    """The least that is a run directory: one that was cut off before anything happened."""
    folder.mkdir()
    (folder / "events.jsonl").touch()
    return folder


@pytest.mark.nightly
def test_a_run_ends_with_its_report_and_a_resumed_one_with_a_new_one(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    job = write_job()
    done = flstream("simulate", job, "--run-dir", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("report         run/report.html\n")
    run = tmp_path / "run"
    page = (run / "report.html").read_text()
    assert "2 rounds with 2 sites" in page
    versions = json.loads((run / "versions.json").read_text())
    assert {"flstream", "Python", "torch", "numpy", "system", "machine"} <= versions.keys()
    assert versions["torch"] in page

    # A page that somebody else put there is left alone, and the run's result stands.
    (run / "report.html").write_text(MINE)
    more = ("--set", "rounds=3", "--resume", "--json")
    done = flstream("simulate", job, "--run-dir", "run", *more)
    assert done.returncode == 0
    assert json.loads(done.stdout)["rounds_completed"] == 3
    [line] = done.stderr.splitlines()
    assert line.startswith("warning: no report was made: ")
    assert "was not made by flstream report" in line
    assert (run / "report.html").read_text() == MINE

    (run / "report.html").write_text(page)
    done = flstream("report", "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run}/report.html\n", "")
    assert "3 rounds with 2 sites" in (run / "report.html").read_text()
    # It is part of a run directory: this can be inspected, and has nothing left to do.
    assert flstream("inspect", "run").returncode == 0
    done = flstream("simulate", job, "--run-dir", "run", *more[:3])
    assert "nothing is left to do" in done.stdout


def test_several_runs_are_compared_in_the_working_directory(
    flstream_here: Flstream, tmp_path: Path
) -> None:
    runs = [a_run(tmp_path / name) for name in ("one", "other")]
    done = flstream_here("report", *runs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "comparison.html\n", "")
    assert "2 runs side by side" in (tmp_path / "comparison.html").read_text()
    assert [each.name for each in runs[0].iterdir()] == ["events.jsonl"]


def test_the_page_goes_where_it_is_told_to(flstream_here: Flstream, tmp_path: Path) -> None:
    done = flstream_here("report", a_run(tmp_path / "one"), "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "page.html\n")
    assert (tmp_path / "page.html").is_file()
    assert not (tmp_path / "one" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job",), "job is not a run directory: it has neither events.jsonl nor summary.json"),
        (("one", "-o", "mine.html"), "mine.html was not made by flstream report"),
        ((), "Missing argument 'RUN'"),
    ],
)
def test_what_cannot_be_reported_gets_a_sentence_and_exit_2(
    flstream_here: Flstream, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    a_run(tmp_path / "one")
    (tmp_path / "job").mkdir()
    (tmp_path / "mine.html").write_text(MINE)
    done = flstream_here("report", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "mine.html").read_text() == MINE


def test_a_page_that_the_disk_refuses_is_a_failure(flstream_here: Flstream, tmp_path: Path) -> None:
    a_run(tmp_path / "one")
    done = flstream_here("report", "one", "-o", "no-such-folder/page.html")
    assert done.returncode == 1
    assert "page.html cannot be written: No such file or directory" in done.stderr
    assert "--resume" not in done.stderr


@pytest.mark.parametrize(
    ("raised", "message"),
    [(KeyboardInterrupt(), "it was stopped"), (ValueError("no chart"), "ValueError: no chart")],
)
def test_a_report_that_fails_costs_a_line_and_not_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    message: str,
) -> None:
    run = RunDirectory(a_run(tmp_path / "run"))

    def fail(path: Path) -> Path:
        raise raised

    monkeypatch.setattr(run_page, "write_report", fail)
    leave_report(run, make_console(), has_run=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith(f"warning: no report was made: {message}")
    assert f"flstream report {run.path}" in line


@pytest.mark.nightly
def test_a_run_that_is_ended_while_its_report_is_drawn_has_its_result(
    write_job: WriteJob, tmp_path: Path
) -> None:
    write_job()
    command = [sys.executable, "-c", STOPPED_WHILE_DRAWING]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "finished"
    [line] = done.stderr.splitlines()
    assert line.startswith("warning: no report was made: it was stopped")


def test_help_imports_nothing_to_draw_with() -> None:
    heavy = {"matplotlib", "jinja2"}
    program = f"import sys, flstream.cli.app; print({heavy!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
