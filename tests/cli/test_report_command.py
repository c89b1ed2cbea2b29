"""`flstream report` rebuilds and compares; `flstream simulate` ends with a report."""

import json
from pathlib import Path

import pytest

from flstream.report import page
from flstream.report.console import make_console
from flstream.report.running import leave_page
from flstream.runs.run_directory import RunDirectory

MINE = "<h1>mine</h1>"


def a_run(folder: Path) -> Path:
    """The least that is a run directory: one that was cut off before anything happened."""
    folder.mkdir()
    (folder / "events.jsonl").touch()
    return folder


def test_a_resumed_run_has_a_new_report_and_leaves_another_page_alone(
    flstream_here, write_job, tmp_path
):
    job, run, inline = write_job(), tmp_path / "run", ("--engine", "inline")
    done = flstream_here("simulate", job, "--run-dir", "run", *inline)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("report         run/report.html\n")
    page = (run / "report.html").read_text()
    assert "2 rounds with 2 sites" in page
    versions = json.loads((run / "versions.json").read_text())
    assert {"flstream", "Python", "torch", "numpy", "system", "machine"} <= versions.keys()
    assert versions["torch"] in page

    # A page that somebody else put there is left alone, and the run's result stands.
    (run / "report.html").write_text(MINE)
    more = ("--set", "rounds=3", "--resume", "--json")
    done = flstream_here("simulate", job, "--run-dir", "run", *more, *inline)
    assert done.returncode == 0
    assert json.loads(done.stdout)["rounds_completed"] == 3
    [line] = done.stderr.splitlines()
    assert line.startswith("warning: no report was made: ")
    assert "was not made by flstream report" in line
    assert (run / "report.html").read_text() == MINE

    (run / "report.html").write_text(page)
    done = flstream_here("report", "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run}/report.html\n", "")
    assert "3 rounds with 2 sites" in (run / "report.html").read_text()


def test_the_page_goes_where_it_is_told_to_and_several_runs_are_compared(flstream_here, tmp_path):
    runs = [a_run(tmp_path / name) for name in ("one", "other")]
    done = flstream_here("report", *runs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "comparison.html\n", "")
    assert "2 runs side by side" in (tmp_path / "comparison.html").read_text()
    done = flstream_here("report", runs[0], "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "page.html\n")
    assert (tmp_path / "page.html").is_file()
    assert [each.name for each in runs[0].iterdir()] == ["events.jsonl"]
    done = flstream_here("report", "one", "-o", "no-such-folder/page.html")
    assert done.returncode == 1  # a page that the disk refuses
    assert "page.html cannot be written: No such file or directory" in done.stderr


def test_a_folder_of_runs_is_compared_by_a_key_and_shows_nothing_of_hidden_folders(
    flstream_here, refused, tmp_path
):
    (tmp_path / "runs" / ".failed").mkdir(parents=True)
    for name in ("one", "other", ".failed/one-1"):
        run = a_run(tmp_path / "runs" / name)
        workflows = "[{ type = fedavg }, { type = cyclic }]"
        (run / "job.conf").write_text(f"name = {run.name}, workflow = {workflows}")
    for words in ((), ("--group-by", "workflow"), ("--over", "name")):
        done = flstream_here("report", "runs", *words)
        assert (done.returncode, done.stdout) == (0, "comparison.html\n"), done.stderr
        page = (tmp_path / "comparison.html").read_text()
        assert "2 runs side by side" in page
        assert "one-1" not in page
    (tmp_path / "more").mkdir()
    a_run(tmp_path / "more" / "third")
    done = flstream_here("report", "runs", "more", "-o", "all.html")
    assert (done.returncode, done.stdout) == (0, "all.html\n"), done.stderr
    assert "3 runs side by side" in (tmp_path / "all.html").read_text()
    assert "did you mean workflow[0].type?" in refused(
        "report", "runs", "--group-by", "workflow[0].typ"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job",), "job is not a run directory, and no run lies below it"),
        (("one", "job"), "job is not a run directory, and no run lies below it"),
        (
            ("one", "mine.html"),
            "mine.html is not a run directory: it has neither events.jsonl nor summary.json",
        ),
        (("one", "-o", "mine.html"), "mine.html was not made by flstream report"),
        ((), "Missing argument 'RUN'"),
    ],
)
def test_what_cannot_be_reported_gets_a_sentence_and_exit_2(refused, tmp_path, words, message):
    a_run(tmp_path / "one")
    (tmp_path / "job").mkdir()
    (tmp_path / "mine.html").write_text(MINE)
    assert message in refused("report", *words)
    assert (tmp_path / "mine.html").read_text() == MINE


@pytest.mark.parametrize(
    ("raised", "message"),
    [(KeyboardInterrupt(), "it was stopped"), (ValueError("no chart"), "ValueError: no chart")],
)
def test_a_report_that_fails_costs_a_line_and_not_the_run(
    tmp_path, monkeypatch, capsys, raised, message
):
    def fail(runs, is_running):
        raise raised

    run = RunDirectory(a_run(tmp_path / "run"))
    monkeypatch.setattr(page, "write_page", fail)
    leave_page(run, make_console(), has_run=True)
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert printed.out == ""
    assert line.startswith(f"warning: no report was made: {message}")
    assert f"flstream report {run.path}" in line
