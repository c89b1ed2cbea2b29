"""Without a terminal a run is told in lines: a few a round, however many sites there are."""

import io

from runs import START, WORKERS, evaluated, round_finished, run_started

from flstream.report.console import make_console
from flstream.report.live.plain import PlainView
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    ModelReady,
    Progress,
    RoundFinished,
    RoundStarted,
    RunFinished,
    SiteBenched,
    SiteFailed,
    SitePhaseChanged,
    SiteUpdate,
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


def quick(number: int) -> RoundFinished:
    event = round_finished(number, START)
    event.download = event.train = event.upload_and_fold = event.checkpoint = 0.0
    return event


def test_every_phase_of_a_round_is_a_line_that_begins_with_the_time() -> None:
    sites = ["site-1", "site-2"]
    folds = [
        Progress(time=START + 70, down={}, up=dict.fromkeys(sites, n), size=9, folded=n)
        for n in (3, 6, 9)
    ]
    lines = lines_of(
        run_started(2, []),
        ModelReady(time=START + 1, bytes=1 << 20, tensors=3, digest=""),
        RoundStarted(time=START + 1, round=1, sites=sites),
        SitePhaseChanged(time=START + 1, round=1, site="site-1", state="downloading"),
        Progress(time=START + 2, down={"site-1": 4}, up={}, size=9),
        SiteUpdate(time=START + 60, round=1, site="site-1", weight=1.0, metrics={}),
        *folds,
        round_finished(1, START + 80),
        evaluated(1, START + 90, accuracy=0.5),
        EndedEarly(time=START + 90, round=1, reason="accuracy >= 0.5"),
        RunFinished(time=START + 3700, status="finished"),
    )
    assert lines == [
        "00:00:00  digits: 10 rounds, 2 sites, pull mode, chunks of 2 MiB",
        "00:00:01  model: 1 MiB in 3 tensors",
        "00:00:01  round 1 of 10: 2 sites training",
        "00:01:10  round 1 of 10: folding 2 updates",
        "00:01:20  round 1 of 10: done in 6.5 s (download 1 s, train 2 s, upload and fold 3 s, "
        "checkpoint 0.5 s); sites report loss 1.5000",
        "00:01:30  round 1 of 10: evaluated in 1 s, accuracy 0.5000",
        "00:01:30  the job ends after round 1: accuracy >= 0.5",
        "01:01:40  the run finished",
    ]


def test_a_round_that_asks_sites_one_after_another_is_announced_once() -> None:
    lines = lines_of(
        run_started(2, []),
        RoundStarted(time=START, round=1, sites=["site-1"]),
        RoundStarted(time=START + 0.5, round=1, sites=["site-2"]),
        SiteUpdate(time=START + 60, round=1, site="site-2", weight=1.0, metrics={}),
        RoundStarted(time=START + 61, round=1, sites=["site-3"]),
        SiteUpdate(time=START + 90, round=1, site="site-3", weight=1.0, metrics={}),
        evaluated(1, START + 91, accuracy=0.5),
        round_finished(1, START + 92),
    )
    assert lines[1:] == [
        "00:00:00  round 1 of 10: 2 sites training",
        "00:01:31  round 1 of 10: evaluated in 1 s, accuracy 0.5000",
        "00:01:32  round 1 of 10: done in 6.5 s (download 1 s, train 2 s, upload and fold 3 s, "
        "checkpoint 0.5 s); sites report loss 1.5000",
    ]


def test_rounds_that_are_over_in_a_moment_are_a_line_each() -> None:
    events: list[AnyEvent] = [run_started(1000, WORKERS)]
    for number in range(1, 4):
        events.append(RoundStarted(time=START, round=number, sites=["site-1"]))
        events.append(quick(number))
    lines = [line.split("  ")[1].split(" (")[0] for line in lines_of(*events)]
    assert lines == [
        "digits: 10 rounds, 1,000 sites in 2 processes, pull mode, chunks of 2 MiB",
        *(f"round {number} of 10: done in 0 s" for number in range(1, 4)),
    ]


def test_of_a_thousand_failures_a_few_are_named_in_each_round_and_the_rest_counted() -> None:
    failures = [
        SiteFailed(time=START, round=number, site=f"site-{site}", reason="it ended")
        for number in (1, 2)
        for site in range(1000)
    ]
    lines = lines_of(
        run_started(1000, []),
        *failures[:1000],
        round_finished(1, START),
        *failures[1000:],
        RunFinished(time=START, status="failed", error="too few"),
    )
    assert sum("it ended" in line for line in lines) == 10
    more = "00:00:00  ... and 995 more failures and warnings; summary.json has all of them"
    assert lines.count(more) == 2
    assert lines[-1] == "00:00:00  the run failed: too few"
    assert len(lines) == 1 + 5 + 2 + 5 + 2


def test_what_a_site_says_cannot_act_on_a_terminal_or_make_a_line_of_its_own() -> None:
    odd = "\x1b[31mred\nround 9\r"
    lines = lines_of(
        SiteFailed(time=START, round=0, site="site-1", reason=odd),
        SiteBenched(time=START, round=1, site="site-1", failures=2),
        Warned(time=START, message=odd),
        RunFinished(time=START, status="stopped"),
    )
    assert lines == [
        "00:00:00  site-1 failed: \\x1b[31mred\\nround 9\\r",
        "00:00:00  site-1 is asked no more: it failed 2 times in a row",
        "00:00:00  warning: \\x1b[31mred\\nround 9\\r",
        "00:00:00  the run was stopped",
    ]


def test_a_round_that_takes_longer_than_those_before_is_told_while_it_goes_on() -> None:
    waiting = [
        Progress(time=START + 5 + tenths / 10, down={"site-1": 9}, up={}, size=9)
        for tenths in range(30)
    ]
    lines = lines_of(
        run_started(1, []),
        RoundStarted(time=START, round=1, sites=["site-1"]),
        quick(1),
        RoundStarted(time=START + 5, round=2, sites=["site-1"]),
        *waiting,
    )
    assert lines[2:] == ["00:00:05  round 2 of 10: 1 site training"]
