"""The live view shows what the events said, and never outgrows the terminal."""

import io

import pytest
from rich.console import Console

from flstream.report.console import make_console
from flstream.report.live import Memory, choose, render
from flstream.report.state import RunState
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    ProcessReady,
    Progress,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    SiteFailed,
    SiteState,
    Transfer,
)

MIB = 1 << 20
START = 1000.0


def started(clients: int = 3, job: str = "digits") -> list[AnyEvent]:
    """Return the events up to the first round's tasks."""
    sites = [f"site-{number}" for number in range(1, clients + 1)]
    return [
        RunStarted(
            time=START,
            job=job,
            seed=7,
            rounds=10,
            sites=sites,
            mode="pull",
            chunk_size=2 * MIB,
        ),
        *(ProcessReady(time=START, process=name, pid=1, idle_rss=MIB) for name in sites),
        ModelReady(time=START, bytes=64 * MIB, tensors=34, digest="0" * 32),
        RoundStarted(time=START, round=1, sites=sites),
        *(SiteState(time=START, round=1, site=name, state="downloading") for name in sites),
    ]


def finished(number: int, time: float) -> RoundFinished:
    return RoundFinished(
        time=time,
        round=number,
        digest="0" * 32,
        download=1.0,
        train=2.0,
        upload_and_fold=3.0,
        checkpoint=0.5,
        weights={},
        metrics={},
        down=Transfer(),
        up=Transfer(),
    )


def state_after(*events: AnyEvent) -> RunState:
    state = RunState(began=START)
    for event in events:
        state.apply(event)
    return state


def frame(state: RunState, width: int = 80, height: int = 24, now: float = START + 1) -> list[str]:
    """Return the lines of a frame as they stand on a terminal of this size."""
    file = io.StringIO()
    rss = {"server": 180 * MIB} | dict.fromkeys(state.sites, 231 * MIB)
    console: Console = make_console(file=file, width=width)
    console.print(render(state, Memory(rss, 3 << 30), now, width, height))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_a_frame_tells_the_round_the_sites_their_bytes_and_the_memory(width: int) -> None:
    state = state_after(
        *started(),
        Progress(time=START + 1, down={"site-1": 16 * MIB, "site-2": 32 * MIB}, up={}, size=1),
    )
    lines = frame(state, width)
    assert max(map(len, lines)) <= width
    assert lines[0] == "digits  round 1 of 10  training  1.0 s"
    assert "model of 64 MiB in 34 tensors, 3 sites, pull mode, chunks of 2 MiB" in lines[1]
    (second,) = (line for line in lines if line.startswith("site-2"))
    assert second.split()[1] == "downloading"
    assert "32 MiB" in second
    assert second.rstrip().endswith("231 MiB")
    assert any("24 MiB/s, 48 MiB in all" in line for line in lines)
    assert any("server 180 MiB RSS, all processes at most 3 GiB" in line for line in lines)


@pytest.mark.parametrize("height", [12, 24, 40])
@pytest.mark.parametrize("clients", [1, 8, 64])
def test_a_frame_fits_the_height_and_counts_the_sites_it_leaves_out(
    clients: int, height: int
) -> None:
    state = state_after(
        *started(clients),
        Evaluated(time=START, round=1, metrics={"accuracy": 0.5}, seconds=1.0, down=Transfer()),
    )
    lines = frame(state, height=height)
    # One line of the terminal is the cursor's.
    assert len(lines) < height
    shown = sum(line.startswith("site-") for line in lines)
    left_out = [line for line in lines if line.startswith("... and")]
    assert left_out == ([f"... and {clients - shown} more"] if shown < clients else [])


def test_when_not_all_sites_fit_the_failed_and_the_busy_are_on_top() -> None:
    state = state_after(
        *started(6),
        SiteState(time=START, round=1, site="site-1", state="ready"),
        SiteState(time=START, round=1, site="site-4", state="training"),
        SiteFailed(time=START, round=1, site="site-6", reason="out of memory"),
    )
    shown, hidden = choose(list(state.sites.values()), 5)
    assert [site.name for site in shown] == ["site-6", "site-2", "site-3", "site-5", "site-4"]
    assert hidden == 1


def test_sites_go_through_their_states_and_the_run_through_its_phases() -> None:
    state = state_after(*started())
    site = state.sites["site-1"]
    assert (state.phase, site.state) == ("training", "downloading")

    state.apply(SiteState(time=START + 1, round=1, site="site-1", state="training"))
    assert (site.state, site.down) == ("training", 64 * MIB)
    assert any("for 3.0 s" in line for line in frame(state, now=START + 4))

    state.apply(Progress(time=START + 4, down={}, up={"site-1": 8 * MIB}, size=64 * MIB))
    assert (state.phase, site.state, site.moved) == ("folding", "uploading", 8 * MIB)

    state.apply(finished(1, START + 5))
    assert site.state == "idle"

    state.apply(SiteState(time=START + 6, round=1, site="site-1", state="downloading"))
    assert (state.phase, site.moved) == ("evaluating", 0)

    state.apply(
        Evaluated(
            time=START + 7, round=1, metrics={"accuracy": 0.9123}, seconds=1.0, down=Transfer()
        )
    )
    assert any("after round 1: accuracy 0.9123" in line for line in frame(state))
    state.apply(RunFinished(time=START + 8, status="finished"))
    assert state.phase == "finished"


def test_throughput_is_of_the_last_moments_only() -> None:
    state = state_after(
        *started(1),
        Progress(time=START, down={"site-1": 10 * MIB}, up={}, size=64 * MIB),
        Progress(time=START + 0.5, down={"site-1": 20 * MIB}, up={}, size=64 * MIB),
    )
    assert state.down.per_second(START + 1) == 10 * MIB
    assert state.down.per_second(START + 60) == 0
    assert state.down.total == 20 * MIB


@pytest.mark.parametrize("width", [60, 80])
def test_no_name_however_long_or_odd_breaks_a_line(width: int) -> None:
    state = state_after(
        *started(2, job="a-very-long-name-of-a-job-" * 4),
        Evaluated(
            time=START,
            round=1,
            metrics={f"[red]metric\x1b[31m-{number}": 0.1 for number in range(9)},
            seconds=1.0,
            down=Transfer(),
        ),
    )
    state.apply(SiteState(time=START, round=1, site="hospital-" * 9, state="training"))
    lines = frame(state, width)
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)
    assert any("[red]metric" in line for line in lines)


def test_before_the_first_event_there_is_a_line_already() -> None:
    assert frame(RunState(began=START)) == ["flstream  starting  1.0 s"]
