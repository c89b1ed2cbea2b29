"""The live view shows what the events said, and never outgrows the terminal."""

import io
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import fields, replace
from rich.cells import cell_len
from rich.console import Console
from runs import (
    MIB,
    START,
    WORKERS,
    after,
    evaluated,
    round_finished,
    run_started,
    shared,
    snapshot,
    started,
)

from flstream.report.live.frame import LiveMemory, render
from flstream.report.live.run_state import LiveRun
from flstream.server.live_picture import LivePicture
from flstream.telemetry.events import (
    AnyEvent,
    Metrics,
    ModelReady,
    NodeJoined,
    NodesAwaited,
    ProcessReady,
    ProcessStarted,
    RoundStarted,
    RunFinished,
    RunResumed,
    SiteFailed,
    SiteLog,
    SiteSuspended,
    SiteUpdate,
    Snapshot,
    WorkerActivity,
)
from flstream.telemetry.memory import ProcessMemory


def frame(run, width=80, height=24, now=START + 1, memory=None, encoding="utf-8") -> list[str]:
    """The lines of a frame as they stand on a terminal of this size and encoding."""
    rss = {"server": 180 * MIB} | dict.fromkeys(run.names, 231 * MIB)
    peaks = {name: ProcessMemory(0, size) for name, size in rss.items()}
    memory = memory or LiveMemory(rss, peaks, 3 << 30)
    shown = render(run, memory, now, width, height)
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, markup=False, force_terminal=True, color_system=None)
    options = console.options.update(no_wrap=True, overflow="crop")
    lines = console.render_lines(shown, options, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def line_of(lines, start):
    (line,) = (line for line in lines if line.startswith(start))
    return line


def names_in(lines, start="site-"):
    return [line.split()[0] for line in lines if line.startswith(start)]


@pytest.mark.parametrize("width", [80, 200])
def test_a_frame_has_the_round_the_sites_their_bytes_and_the_memory(width):
    moved = {f"site-{n}": ("downloading", 16 * n * MIB) for n in (0, 1, 2)}
    picture = snapshot("downloading", 3, moved, START + 1, down=48 * MIB, rates=(24 * MIB, 0, 0))
    lines = frame(after(*started(), picture), width)
    assert lines[0].split() == ["digits", "round", "1", "of", "10", "1.0", "s", "downloading"]
    assert lines[1] == "model of 64 MiB in 34 tensors, 3 sites, pull mode, chunks of 2 MiB"
    assert line_of(lines, "rounds").endswith("  0 of 10")
    assert line_of(lines, "down    \u2501").endswith("48 MiB of 192 MiB")
    assert {"downloading", "50%", "64", "231"} <= set(line_of(lines, "site-2").split())
    assert "24 MiB/s, 48 MiB in all" in line_of(lines, "down      ")
    assert "server 180 MiB RSS, all processes at most 3 GiB so far" in line_of(lines, "memory")
    assert line_of(lines, "worker ").endswith("time           RSS   peak RSS")


def test_sites_that_processes_share_are_counted_and_their_failures_named():
    workers = [
        WorkerActivity("worker-1", "training", START + 1, "site-20", 12, 50, MIB),
        WorkerActivity("worker-2", "downloading", START + 3, "site-51", 0, 1, MIB // 2),
    ]
    failed = [
        SiteFailed(time=START, round=1, site=f"site-{n}", reason=f"out of order\n{n}")
        for n in range(300)
    ]
    counts = {"asked": 400, "done": 20, "failed": 300, "down": 3 * MIB}
    picture = Snapshot(time=START + 4, round=1, phase="training", workers=workers, **counts)
    lines = frame(after(*shared(2000, 400), *failed, picture), 120, now=START + 4)
    assert "2,000 sites in 2 processes" in lines[1]
    assert "20 of 400 done, 300 failed" in line_of(lines, "sites")
    assert "site-20, 13 of 50" in line_of(lines, "worker-1")
    assert "50%" in line_of(lines, "worker-2")
    assert "3 MiB in all" in line_of(lines, "down")
    assert names_in(lines)[0] == "site-299"
    assert "round 1: out of order\\n299" in line_of(lines, "site-299")
    assert names_in(lines, "worker-") == WORKERS


def test_a_site_that_answers_again_is_no_failure_any_more_unless_it_is_suspended():
    run = after(
        *started(2),
        *(SiteFailed(time=START, round=1, site=f"site-{n}", reason="no") for n in (1, 2)),
        SiteSuspended(time=START, round=1, site="site-2", failures=2),
        RoundStarted(time=START, round=2, sites=["site-1"]),
        SiteUpdate(time=START, round=2, site="site-1", weight=1.0, metrics={"loss": 0.25}),
        snapshot("training", 1, {"site-1": ("ready", 0)}),
    )
    assert list(run.failures) == ["site-2"]
    assert "asked no more: round 1: no" in line_of(frame(run, 120), "site-2")
    assert "loss 0.2500" in line_of(frame(run, 120), "site-1")


@pytest.mark.parametrize(("clients", "height"), [(1, 12), (8, 12), (64, 24), (64, 80)])
def test_a_frame_counts_the_sites_that_its_height_leaves_out(clients, height):
    lines = frame(after(*started(clients), evaluated(1, START, accuracy=0.5)), height=height)
    shown = len(names_in(lines))
    assert shown <= 32
    left_out = [line for line in lines if line.startswith("... ")]
    assert left_out == ([f"... {clients - shown} rows left out"] if shown < clients else [])


def test_the_failed_are_on_top_and_then_those_at_work_longest():
    working = [WorkerActivity(f"site-{n}", "training", START + 6 - n) for n in (2, 6)]
    answered = [WorkerActivity(f"site-{n}", "ready", START) for n in (1, 3, 5)]
    run = after(
        *started(6),
        SiteFailed(time=START + 1, round=1, site="site-4", reason="out of memory"),
        Snapshot(round=1, phase="training", asked=6, workers=[*answered, *working]),
    )
    assert names_in(frame(run, height=40)) == ["site-4", *(f"site-{n}" for n in (1, 2, 3, 5, 6))]
    assert names_in(frame(run, height=9))[:3] == ["site-4", "site-6", "site-2"]
    assert "round 1: out of memory" in line_of(frame(run, 120), "site-4")


def test_sites_go_through_their_states_and_the_run_through_its_phases():
    run = after(*started(), snapshot("training", 3, {"site-1": ("training", 9)}, START + 1))
    run.apply(SiteLog(time=START + 1, round=1, site="site-1", key="loss", value=0.25))
    assert "3.0 s" in line_of(frame(run, now=START + 4), "site-1")
    assert "loss 0.2500" in line_of(frame(run, 120, now=START + 4), "site-1")
    assert line_of(frame(run), "sites").endswith("0 of 3 done")
    assert "idle" in line_of(frame(run), "site-2")
    run.apply(snapshot("folding", 3, {"site-1": ("uploading", 8 * MIB)}, folded=8 * MIB))
    assert line_of(frame(run), "fold").endswith("8 MiB of 64 MiB")
    assert "12% of 64 MiB" in line_of(frame(run), "site-1")
    run.apply(evaluated(1, START + 7, accuracy=0.9123))
    assert not any("up+fold" in line for line in frame(run))
    run.apply(round_finished(1, START + 8))
    assert run.phase == "round is over"
    run.apply(round_finished(2, START + 8))
    lines = frame(run)
    assert line_of(lines, "scores").endswith("after round 1: accuracy 0.9123")
    assert ["1", "0.9123", "1.5000"] in [line.split()[:3] for line in lines]
    run.apply(RunFinished(time=START + 8, status="finished"))
    assert run.phase == "finished"


def test_a_run_that_starts_says_what_it_waits_for():
    run = LiveRun(START)
    libraries = "starting: importing the libraries that all processes share"
    assert frame(run) == [f"flstream  {libraries}  1.0 s"]
    run.apply(ProcessStarted(time=START, process="model-builder", pid=3))
    run.apply(run_started(3, []))
    assert frame(run, 120)[0].endswith(
        "starting: 0 of 3 processes ready; importing: site-1, site-2, site-3"
    )
    for site in ("site-3", "site-1"):
        run.apply(ProcessReady(time=START, process=site, pid=1, idle_rss=MIB))
    assert run.phase == "starting: 2 of 3 processes ready; importing: site-2"
    run.apply(NodesAwaited(time=START))
    assert run.phase == "waiting for nodes"
    run.apply(NodeJoined(time=START, node="n", cpus=2))
    run.apply(ProcessReady(time=START, process="site-2", pid=1, idle_rss=MIB))
    assert run.phase == "starting: building the initial model"
    run.apply(ModelReady(time=START, bytes=MIB, tensors=2, digest="0" * 32))
    assert run.phase == "starting"
    run.apply(RunResumed(time=START, round=2, effect=4))
    assert (run.phase, run.round) == ("starting", 2)
    run.apply(RoundStarted(time=START, round=3, sites=["site-1"]))
    assert (run.phase, run.round) == ("training", 3)
    run.apply(ProcessReady(time=START, process="site-2", pid=9, idle_rss=MIB))  # a new one
    assert run.phase == "training"


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


BY_TYPE[list[WorkerActivity]] = st.lists(any_of(WorkerActivity), max_size=3)
EVENTS = st.one_of(*map(any_of, get_args(AnyEvent)))


@given(
    st.lists(EVENTS, max_size=25),
    st.integers(20, 250),
    st.integers(5, 80),
    st.floats(START - 10, START + 2e5),
    st.sampled_from(["ascii", "utf-8"]),
)
def test_whatever_happens_a_frame_fits_the_terminal(events, width, height, now, encoding):
    run = after(run_started(20, []), *events)
    peaks = {"worker-1": ProcessMemory(0, 1 << 40)}
    memory = LiveMemory({"server": 1 << 60, "site-1": 0}, peaks, 1 << 60)
    lines = frame(run, width, height, now, memory, encoding)
    assert 1 <= len(lines) <= height
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)


def test_the_time_left_is_shown_only_where_something_speaks_for_it():
    run = after(*started())
    assert run.seconds_left(START + 3) is None
    run.apply(round_finished(1, START + 8))
    run.apply(RoundStarted(time=START + 10, round=2, sites=["site-1"]))
    assert run.seconds_left(START + 10) == 9 * 10
    run.apply(RoundStarted(time=START + 14, round=3, sites=["site-1"]))
    # The first round, in which much is loaded, is forgotten.
    assert run.seconds_left(START + 15) == 3 + 7 * 4
    assert "about 31 s left" in frame(run, now=START + 15)[0]
    run.apply(RunFinished(time=START + 16, status="stopped"))
    assert run.seconds_left(START + 16) is None


def test_scores_of_a_model_that_sites_received_are_those_of_its_own_round():
    run = after(*started())
    run.apply(round_finished(1, START + 8))
    run.apply(RoundStarted(time=START + 9, round=2, sites=["site-1"]))
    run.apply(evaluated(1, START + 10, accuracy=0.5))
    run.apply(round_finished(2, START + 12))
    rows = [line.split()[:3] for line in frame(run)]
    assert [row for row in rows if row[:1] in (["1"], ["2"])] == [
        ["1", "0.5000", "1.5000"],
        ["2", "-", "1.5000"],
    ]


def test_the_server_keeps_the_whole_picture_and_emits_it_as_snapshots():
    emitted: list[Snapshot] = []
    picture, states = LivePicture(emitted.append), dict.fromkeys(map(str, range(40)), "downloading")
    works = lambda: [WorkerActivity(name, state, START) for name, state in states.items()]  # noqa: E731
    picture.begin("training", 2, 40, works)
    picture.emit_snapshot(at_once=True)
    assert (emitted[-1].phase, len(emitted[-1].workers)) == ("downloading", 32)
    states["0"] = "training"
    picture.arrived(5)
    picture.failed()
    # While sites are at work, a sum that grows is no fold of the round.
    picture.fold(1, 4, [])
    picture.emit_snapshot(at_once=True)
    last = emitted[-1]
    assert (last.phase, last.done, last.failed, last.down) == ("training", 0, 1, 5)
    assert last.rates[0] > last.rates[1] == 0
    for _ in range(39):
        picture.answered(2)
    picture.fold(4, 4, ["0"])
    last = emitted[-1]
    assert (last.phase, last.up, last.workers[0].state) == ("writing the checkpoint", 82, "ready")


def test_a_site_that_is_late_is_no_failure_and_the_title_has_the_simulated_time():
    late = SiteFailed(time=START, round=1, site="site-2", reason="not waited for", late=True)
    over = replace(round_finished(1, START + 9), simulated_seconds=5400.0)
    run = after(*started(2), late, over)
    lines = frame(run, 140, now=START + 10)
    assert run.failures == {}
    assert "10.0 s, 1h 30m 00s simulated" in lines[0]
    assert "simulated" in line_of(lines, "round  ")
