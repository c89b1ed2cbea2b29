"""Without a terminal a run is told in lines: a few a round, however many sites there are."""

import io

from msgspec.structs import replace
from runs import START, WORKERS, evaluated, round_finished, run_started

from flstream.report.console import make_console
from flstream.report.live.plain import PlainView
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    ModelReady,
    RoundStarted,
    RunFinished,
    SiteFailed,
    SitePhaseChanged,
    SiteSuspended,
    SiteUpdate,
    Snapshot,
    Warned,
)
from flstream.telemetry.memory import MemorySampler

NO_MEMORY = MemorySampler()


def lines_of(*events: AnyEvent) -> list[str]:
    file = io.StringIO()
    view = PlainView(make_console(file=file))
    for event in events:
        view(event, NO_MEMORY)
    return file.getvalue().splitlines()


def test_a_round_is_a_few_lines_that_begin_with_the_time():
    sites = ["site-1", "site-2"]
    lines = lines_of(
        run_started(2, []),
        ModelReady(time=START + 1, bytes=1 << 20, tensors=3, digest=""),
        RoundStarted(time=START + 1, round=1, sites=sites),
        SitePhaseChanged(time=START + 1, round=1, site="site-1", state="downloading"),
        SiteUpdate(time=START + 60, round=1, site="site-1", weight=1.0, metrics={}),
        round_finished(1, START + 80),
        evaluated(1, START + 90, accuracy=0.5),
        # A round that asks sites one after another is announced once.
        RoundStarted(time=START + 91, round=2, sites=["site-1"]),
        RoundStarted(time=START + 91.5, round=2, sites=["site-2"]),
        SiteUpdate(time=START + 92, round=2, site="site-2", weight=1.0, metrics={}),
        RoundStarted(time=START + 93, round=2, sites=["site-3"]),
        EndedEarly(time=START + 94, round=1, reason="accuracy >= 0.5"),
        RunFinished(time=START + 3700, status="failed", error="too few"),
    )
    expected = [
        "00:00:00  digits: 10 rounds, 2 sites, pull mode",
        "00:00:01  model: 1 MiB in 3 tensors",
        "00:00:01  round 1 of 10: 2 sites training",
        "00:01:20  round 1 of 10: done in 6.5 s",
        "00:01:30  round 1 of 10: evaluated in 1 s, accuracy 0.5000",
        "00:01:31  round 2 of 10: 2 sites training",
        "00:01:34  the job ends after round 1: accuracy >= 0.5",
        "01:01:40  the run failed: too few",
    ]
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected
    assert "sites report loss 1.5000" in lines[3]


def test_a_start_that_takes_long_says_what_it_waits_for_once(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("time.time", lambda: START)
    view = PlainView(make_console(file=file))

    def tick(seconds, *events):
        monkeypatch.setattr("time.time", lambda: START + seconds)
        for event in events:
            view(event, NO_MEMORY)
        view.tick()
        lines = file.getvalue().splitlines()
        file.seek(0)
        file.truncate()
        return lines

    assert tick(4) == []
    libraries = "importing the libraries that all processes share"
    assert tick(6) == [f"00:00:06  starting: {libraries}"]
    assert tick(7) == []
    assert tick(8, run_started(1000, WORKERS))[1:] == [
        "00:00:08  starting: 0 of 2 processes ready; importing: worker-1, worker-2"
    ]
    assert tick(9, RoundStarted(time=START + 8.5, round=1, sites=["site-1"])) == []
    assert view.start.is_over


def test_a_round_that_is_over_in_a_moment_is_a_line_until_one_takes_longer():
    none = dict.fromkeys(("download", "train", "upload_and_fold", "checkpoint"), 0.0)
    quick = [replace(round_finished(number, START), **none) for number in (1, 2)]
    begun = [RoundStarted(time=START, round=number, sites=["site-1"]) for number in (1, 2)]
    lines = lines_of(
        run_started(1000, WORKERS),
        *(event for both in zip(begun, quick, strict=True) for event in both),
        RoundStarted(time=START + 5, round=3, sites=["site-1"]),
        *(Snapshot(time=START + 5 + n / 10) for n in range(30)),
    )
    heads = [line.split("  ")[1].split(" (")[0] for line in lines]
    assert heads[0].startswith("digits: 10 rounds, 1,000 sites in 2 processes")
    assert heads[1:] == [
        "round 1 of 10: done in 0 s",
        "round 2 of 10: done in 0 s",
        "round 3 of 10: 1 site training",
    ]


def test_of_many_failures_a_few_are_named_in_each_round_and_none_acts_on_a_terminal():
    odd = "\x1b[31mred\nround 9\r"
    failures = [
        SiteFailed(time=START, round=number, site=f"site-{site}", reason=odd)
        for number in (1, 2)
        for site in range(1000)
    ]
    benched = SiteSuspended(time=START, round=1, site="site-1", failures=2)
    lines = lines_of(
        run_started(1000, []), *failures[:1000], round_finished(1, START), *failures[1000:], benched
    )
    assert lines[1] == "00:00:00  round 1: site-0 failed: \\x1b[31mred\\nround 9\\r"
    assert sum("red" in line for line in lines) == 10
    assert sum("and 995 more failures and warnings" in line for line in lines) == 1
    assert len(lines) < 16
    assert "\\x1b[31m" in lines_of(Warned(time=START, message=odd))[0]
    assert "failed 2 times in a row" in lines_of(benched)[0]


def test_late_sites_are_counted_in_the_line_of_their_round_beside_its_simulated_time():
    late = [
        SiteFailed(time=START, round=1, site=f"site-{n}", reason="not waited for", late=True)
        for n in range(20)
    ]
    failed = SiteFailed(time=START, round=1, site="site-99", reason="no data")
    done = replace(round_finished(1, START), simulated_seconds=5400.0)
    lines = lines_of(run_started(100, []), *late, failed, done, round_finished(2, START))
    assert [line.split("  ")[1].split(":")[0] for line in lines[1:]] == [
        "round 1", "round 1 of 10", "round 2 of 10",
    ]  # fmt: skip
    assert "site-99 failed: no data" in lines[1]
    assert ", at 1h 30m 00s simulated (" in lines[2]
    assert ", 20 late or away" in lines[2]
    assert "simulated" not in lines[3]
    assert "late" not in lines[3]
