"""The live view shows what the events said, and never outgrows the terminal."""

import io
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import fields
from rich.cells import cell_len
from rich.console import Console
from runs import (
    MIB,
    START,
    WORKERS,
    evaluated,
    round_finished,
    run_started,
    shared,
    started,
    state_after,
)

from flstream.report.live.frame import render
from flstream.report.live.progress import seconds_left, seconds_left_of, task_done
from flstream.report.live.site_state import Memory
from flstream.report.live.state import RunState
from flstream.report.live.table import bar
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    Metrics,
    Progress,
    RoundStarted,
    RunFinished,
    SiteFailed,
    SiteLog,
    SitePhaseChanged,
    SiteSuspended,
    SiteUpdate,
    WorkerActivity,
)


def frame(state, width=80, height=24, now=START + 1) -> list[str]:
    """The lines of a frame as they stand on a terminal of this size."""
    rss = {"server": 180 * MIB} | dict.fromkeys([*state.sites, *state.workers], 231 * MIB)
    return on_terminal(render(state, Memory(rss, rss, 3 << 30), now, width, height), width)


def on_terminal(frame, width, encoding="utf-8") -> list[str]:
    """The lines that a terminal of this width and encoding shows, with nothing wrapped."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, markup=False, force_terminal=True, color_system=None)
    options = console.options.update(no_wrap=True, overflow="crop")
    lines = console.render_lines(frame, options, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def line_of(lines, start):
    (line,) = (line for line in lines if line.startswith(start))
    return line


def phase(site, state, time):
    return SitePhaseChanged(time=time, round=1, site=site, state=state)


def names_in(lines, start="site-"):
    return [line.split()[0] for line in lines if line.startswith(start)]


@pytest.mark.parametrize("width", [80, 200])
def test_a_frame_tells_the_round_the_sites_their_bytes_and_the_memory(width):
    state = state_after(
        *started(),
        Progress(time=START + 1, down={"site-1": 16 * MIB, "site-2": 32 * MIB}, up={}, size=1),
    )
    lines = frame(state, width)
    assert lines[0].split() == ["digits", "round", "1", "of", "10", "downloading", "1.0", "s"]
    assert len(lines[0]) == width
    assert lines[1] == "model of 64 MiB in 34 tensors, 3 sites, pull mode, chunks of 2 MiB"
    assert line_of(lines, "rounds").endswith(" 0%  0 of 10")
    assert line_of(lines, "down    \u2501").endswith("25%  48.0 MiB of 192 MiB, 3 s left")
    second = line_of(lines, "site-2").split()
    assert second[1] == "downloading"
    assert "50%" in second
    assert second.count("32.0") == (2 if width == 200 else 1)  # the second one is its rate
    assert "231.0 MiB" in line_of(lines, "site-2")
    assert "96.0 MiB/s, 48.0 MiB in all" in line_of(lines, "down      ")
    assert line_of(lines, "memory").endswith(
        "server 180.0 MiB RSS, all processes at most 3.0 GiB so far"
    )


def test_a_wide_terminal_has_more_columns_and_nodes_are_one():
    state = state_after(*started(4))
    assert "peak RSS" not in line_of(frame(state, 80), "site ")
    assert line_of(frame(state, 200), "site ").split()[-2:] == ["peak", "RSS"]
    nodes = {"site-1": "machine-1"}
    lines = on_terminal(render(state, Memory({}, {}, 3 << 30, nodes), START + 1, 80, 24), 80)
    assert "node" in line_of(lines, "site ").split()
    assert line_of(lines, "site-1").split()[2] == "machine-1"
    assert "machine" not in line_of(lines, "site-3")


def test_sites_that_processes_share_are_told_by_process_and_in_all():
    work = {
        "worker-1": WorkerActivity("training", "site-20", 12, 50, START + 1, MIB),
        "worker-2": WorkerActivity("downloading", "site-51", 0, 1, START + 3, MIB // 2),
    }
    failed = [
        SiteFailed(time=START, round=1, site=f"site-{n}", reason=f"out of order\n{n}")
        for n in range(300)
    ]
    state = state_after(
        *shared(2000, 400),
        *failed,
        Progress(time=START + 4, down={}, up={}, size=MIB, sent=3 * MIB, answered=8, workers=work),
    )
    lines = frame(state, 120, now=START + 4)
    assert "2,000 sites in 2 processes" in lines[1]
    assert "20 of 400 done, 300 failed" in line_of(lines, "sites")
    assert "site-20, 13 of 50" in line_of(lines, "worker-1")
    assert "50%" in line_of(lines, "worker-2")
    assert "3.0 MiB in all" in line_of(lines, "down")
    # Of many failures the last are named, and the rest counted.
    shown = names_in(lines)
    assert shown[0] == "site-299"
    assert "round 1: out of order\\n299" in line_of(lines, "site-299")
    assert f"... and {300 - len(shown):,} more sites that failed" in lines
    assert names_in(lines, "worker-") == WORKERS


def test_a_site_that_answers_again_is_no_failure_any_more_unless_it_is_suspended():
    state = state_after(
        *shared(),
        *(SiteFailed(time=START, round=1, site=f"site-{n}", reason="no") for n in (1, 2)),
        SiteSuspended(time=START, round=1, site="site-2", failures=2),
        RoundStarted(time=START, round=2, sites=["site-1"]),
        SiteUpdate(time=START, round=2, site="site-1", weight=1.0, metrics={}),
    )
    assert list(state.failures) == ["site-2"]
    assert "benched" in line_of(frame(state), "site-2")


@pytest.mark.parametrize(("clients", "height"), [(1, 12), (8, 12), (64, 24)])
def test_a_frame_counts_the_sites_that_its_height_leaves_out(clients, height):
    lines = frame(state_after(*started(clients), evaluated(1, START, accuracy=0.5)), height=height)
    shown = len(names_in(lines))
    left_out = [line for line in lines if line.startswith("... and")]
    assert left_out == ([f"... and {clients - shown} more"] if shown < clients else [])


def test_the_failed_and_the_slow_are_on_top():
    state = state_after(
        *started(6),
        *(phase(f"site-{n}", "training", START) for n in range(1, 7)),
        SiteFailed(time=START + 1, round=1, site="site-4", reason="out of memory"),
        *(phase(f"site-{n}", "ready", START + 10) for n in (1, 3, 5)),
    )
    # Half of them took ten seconds, so nobody is slow before twenty.
    order = ["site-4", "site-1", "site-2", "site-3", "site-5", "site-6"]
    assert names_in(frame(state, now=START + 19)) == order
    order = ["site-4", "site-2", "site-6", "site-1", "site-3", "site-5"]
    assert names_in(frame(state, now=START + 21)) == order
    assert "round 1: out of memory" in line_of(frame(state), "site-4")


def test_sites_go_through_their_states_and_the_run_through_its_phases():
    state = state_after(*started())
    site = state.sites["site-1"]
    assert (state.phase, site.state) == ("training", "downloading")

    state.apply(phase("site-1", "training", START + 1))
    assert (site.state, site.down) == ("training", 64 * MIB)
    state.apply(SiteLog(time=START + 1, round=1, site="site-1", key="loss", value=0.25))
    assert "3.0 s" in line_of(frame(state, now=START + 4), "site-1")
    assert "loss 0.2500" in line_of(frame(state, now=START + 4), "site-1")

    state.apply(SiteUpdate(time=START + 4, round=1, site="site-1", weight=9.0, metrics={}))
    assert line_of(frame(state), "sites").endswith("33%  1 of 3 done")
    up = {"site-1": 8 * MIB}
    state.apply(Progress(time=START + 4, down={}, up=up, size=64 * MIB, folded=8 * MIB))
    assert (state.phase, site.state, site.moved) == ("folding", "uploading", 8 * MIB)
    assert "12%  8.0 MiB of 64 MiB" in line_of(frame(state), "fold")

    up = {"site-1": 64 * MIB}
    state.apply(Progress(time=START + 5, down={}, up=up, size=64 * MIB, folded=64 * MIB))
    assert state.phase == "writing the checkpoint"
    fold = {"name": "fold", "request": "", "arguments": "", "is_final": True}
    state.apply(EffectDone(time=START + 6, effect=1, round=1, **fold))
    state.apply(phase("site-1", "downloading", START + 6))
    assert (state.phase, site.moved) == ("evaluating", 0)
    state.apply(evaluated(1, START + 7, accuracy=0.9123))
    assert state.history == []
    state.apply(round_finished(1, START + 8))
    assert (state.phase, site.state) == ("round is over", "idle")
    lines = frame(state)
    assert line_of(lines, "scores").endswith("after round 1: accuracy 0.9123")
    assert line_of(lines, "1 ").split()[-2:] == ["0.9123", "1.5000"]
    state.apply(RunFinished(time=START + 8, status="finished"))
    assert state.phase == "finished"


def test_a_bar_is_full_at_the_end_alone():
    cases = {(1, 2): "\u2501" * 4 + "\u2578", (0, 0): "", (999, 1000): "\u2501" * 8 + "\u2578"}
    for (done, total), drawn in cases.items():
        assert "".join(on_terminal(bar(done, total, "red"), 9)) == drawn
    assert frame(RunState(began=START)) == ["flstream  starting  1.0 s"]


NAMES = st.sampled_from(
    ["site-1", "site-2", "worker-1", "\u75c5\u9662" * 9, "x" * 90, "\x1b[31m\n", "e\u0301\u200b"]
)
TIMES, SIZES, ROUNDS = st.floats(START, START + 1e5), st.integers(0, 1 << 50), st.integers(0, 12)
BY_TYPE = {
    str: NAMES,
    int: SIZES,
    Raw: st.just(Raw()),
    dict[str, int]: st.dictionaries(NAMES, SIZES, max_size=3),
    Metrics: st.dictionaries(NAMES, st.none() | st.floats(), max_size=4),
}
BY_NAME = {"time": TIMES, "since": TIMES, "round": ROUNDS, "clients": ROUNDS, "reason": st.text()}


def any_of(kind):
    """Structs of a type, with anything in their fields."""
    known = BY_NAME | BY_TYPE
    values = {}
    for each in fields(kind):
        keys = [key for key in (each.name, each.type) if key in known]
        values[each.name] = known[keys[0]] if keys else st.from_type(each.type)
    return st.builds(kind, **values)


BY_TYPE[dict[str, WorkerActivity]] = st.dictionaries(NAMES, any_of(WorkerActivity), max_size=3)
EVENTS = st.one_of(*map(any_of, get_args(AnyEvent)))


@given(
    st.lists(EVENTS, max_size=25),
    st.integers(20, 250),
    st.integers(5, 80),
    st.floats(START - 10, START + 2e5),
    st.sampled_from(["ascii", "utf-8"]),
)
def test_whatever_happens_a_frame_fits_the_terminal(events, width, height, now, encoding):
    state = state_after(run_started(20, []), *events)
    memory = Memory({"server": 1 << 60, "site-1": 0}, {"worker-1": 1 << 40}, 1 << 60)
    lines = on_terminal(render(state, memory, now, width, height), width, encoding)
    assert 1 <= len(lines) <= height
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)


def test_the_time_left_is_told_only_where_something_speaks_for_it():
    state = state_after(*started())
    assert seconds_left(state, START + 3) is None
    state.apply(round_finished(1, START + 8))
    state.apply(RoundStarted(time=START + 10, round=2, sites=["site-1"]))
    assert seconds_left(state, START + 10) == 9 * 10
    state.apply(RoundStarted(time=START + 14, round=3, sites=["site-1"]))
    # The first round, in which much is loaded, is forgotten.
    assert seconds_left(state, START + 15) == 3 + 7 * 4
    state.apply(RunFinished(time=START + 16, status="stopped"))
    assert seconds_left(state, START + 16) is None

    many = state_after(*shared(), Progress(time=START, down={}, up={}, size=MIB, answered=25))
    done = task_done(many, START + 10)
    assert (done.amount, done.total, done.seconds_left) == (25, 100, 30)
    for share, elapsed, left in ((0.5, 10.0, 10.0), (0.01, 10.0, None), (0.5, 0.2, None)):
        assert seconds_left_of(share, elapsed) == left
