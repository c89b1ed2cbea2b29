"""Errors of sites: once for all sites that have them, with their tracebacks."""

import traceback
from contextlib import suppress

import pytest
from run_directories import BEGAN, one_round, started, write_run

from flstream.report.page import run_page
from flstream.report.run_record import read_run
from flstream.report.site_errors import site_errors
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import SiteFailure
from flstream.telemetry.events import SiteFailed


def failing(cause: Exception | None = None) -> str:
    """Fail, and return the traceback as a log has it."""

    def fail() -> None:
        raise ValueError("<b>bad</b> & \x1b[31m") from cause

    with suppress(KeyError):  # so that it has a traceback, too
        if cause:
            raise cause
    with pytest.raises(ValueError, match="bad") as failure:
        fail()
    return "".join(traceback.format_exception(failure.value))


def line_of(log: str) -> str:
    return log.rpartition(", line ")[2].partition(",")[0]


def with_logs(folder, logs):
    """A run directory whose sites have logs."""
    run = RunDirectory(folder)
    for site, text in logs.items():
        run.site(site).mkdir(parents=True)
        run.site_log(site).write_text(text)
    return run


def test_sites_with_the_same_error_are_named_once_the_most_frequent_first():
    rare = SiteFailure(1, "site-4", "no data")
    often = [SiteFailure(n, f"site-{n % 3 + 1}", "out of memory") for n in range(1, 5)]
    errors = site_errors([rare, *often])
    assert [error.reason for error in errors] == ["out of memory", "no data"]
    assert errors[0].sites == ["site-2", "site-3", "site-1"]
    assert errors[0].who == "site-2, site-3, site-1: 4 times, last in round 4"
    assert errors[1].who == "site-4: 1 time, last in round 1"


def test_a_traceback_is_that_of_its_error_whatever_the_log_has_beside_it(tmp_path):
    log = failing()
    other = "Traceback (most recent call last):\n  File x, line 1, in x\nKeyError: 'no'\n"
    printed = f"epoch 1\n{log}epoch 2\n{other}epoch 3\n"
    run = with_logs(tmp_path, {"site-1": printed})
    reasons = [
        f"client.py, line {line_of(log)} raised ValueError: bad",
        "client.py raised KeyError",
    ]
    texts = [error.traceback for error in _errors(run, *reasons)]
    assert texts[0] == log.rstrip().replace("\x1b", "\\x1b")
    assert texts[1] == other.rstrip()
    for reason in (
        "worker-1 was killed by SIGKILL",
        "client.py, line 77777 raised ValueError",
        "x raised OSError",
    ):
        assert [error.traceback for error in _errors(run, reason)] == [""]


def _errors(run, *reasons, site="site-1"):
    return site_errors([SiteFailure(1, site, reason) for reason in reasons], run)


def test_the_causes_of_an_error_are_part_of_its_traceback(tmp_path):
    log = failing(KeyError("a"))
    run = with_logs(tmp_path, {"site-1": log})
    (error,) = _errors(run, "client.py raised ValueError")
    assert error.traceback == log.rstrip().replace("\x1b", "\\x1b")
    assert error.traceback.count("most recent call last") == 2
    cut = log[log.index("The above exception") :]  # as where a log's end begins within
    assert _errors(with_logs(tmp_path / "cut", {"site-1": cut}), "x raised ValueError")[0].traceback


def test_of_a_long_traceback_the_last_lines_are_shown(tmp_path):
    frames = [f"  File client.py, line {n}, in f{n}" for n in range(60)]
    log = ["Traceback (most recent call last):", *frames, "ValueError: bad", "\tvery " + "x" * 999]
    run = with_logs(tmp_path, {"site-1": "x" * 200_000 + "\n" + "\n".join(log)})
    (error,) = _errors(run, "client.py, line 59 raised ValueError")
    lines = error.traceback.splitlines()
    assert len(lines) == 40
    assert lines[-3:-1] == log[-3:-1]
    assert lines[-1].startswith("    very")
    assert len(lines[-1]) <= 200


def test_a_site_whose_name_is_a_path_has_no_log_read(tmp_path):
    run = with_logs(tmp_path / "run", {"site-1": ""})
    (tmp_path / "run" / "log.txt").write_text(failing())
    for name in ("..", "../.", "\0", "x" * 300, ""):
        assert _errors(run, "client.py raised ValueError", site=name)[0].traceback == ""


def test_the_page_of_a_run_has_each_error_once_with_its_traceback_as_text(tmp_path):
    log = failing()
    reason = f"client.py, line {line_of(log)} raised ValueError: <b>bad</b>"
    failures = [
        SiteFailed(round=1, site=site, reason=reason, time=BEGAN + 14)
        for site in ("site-1", "site-2")
    ]
    folder = write_run(tmp_path / "run", [*started(), *one_round(1, BEGAN + 2), *failures])
    with_logs(folder, {"site-2": log})
    page = run_page([read_run(folder)])
    assert page.count("ValueError: &lt;b&gt;bad") == 2  # the sentence, and the traceback's end
    assert "site-1, site-2: 2 times, last in round 1: client.py" in page
    assert "<b>bad" not in page
    assert page.count('<details class="error">') == 1
    assert "\x1b" not in page
    compared = run_page([read_run(folder, is_one_of_many=True)] * 2)
    assert "2 times, last in round 1: client.py" in compared
    assert "most recent call last" not in compared
