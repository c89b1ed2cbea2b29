"""The live view shows what the events said, and never outgrows the terminal."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
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
from flstream.report.live.site_state import Memory
from flstream.report.live.site_table import choose
from flstream.report.live.state import RunState
from flstream.report.live.table import bar
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    ModelReady,
    ProcessReady,
    Progress,
    RoundStarted,
    RunFinished,
    SiteBenched,
    SiteFailed,
    SiteLog,
    SitePhaseChanged,
    SiteUpdate,
    WorkerActivity,
)


def frame(state: RunState, width: int = 80, height: int = 24, now: float = START + 1) -> list[str]:
    """Return the lines of a frame as they stand on a terminal of this size."""
    rss = {"server": 180 * MIB} | dict.fromkeys([*state.sites, *state.workers], 231 * MIB)
    return on_terminal(render(state, Memory(rss, rss, 3 << 30), now, width, height), width)


def on_terminal(frame: RenderableType, width: int, encoding: str = "utf-8") -> list[str]:
    """Return the lines that a terminal of this width and encoding shows, with nothing wrapped."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, markup=False, force_terminal=True, color_system=None)
    options = console.options.update(no_wrap=True, overflow="crop")
    lines = console.render_lines(frame, options, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def line_of(lines: list[str], start: str) -> str:
    (line,) = (line for line in lines if line.startswith(start))
    return line


@pytest.mark.parametrize("width", [80, 200])
def test_a_frame_tells_the_round_the_sites_their_bytes_and_the_memory(width: int) -> None:
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


@pytest.mark.parametrize("width", [80, 120, 200])
def test_sites_on_nodes_have_a_column_of_nodes(width: int) -> None:
    state = state_after(*started())
    nodes = {f"site-{number}": f"machine-{number % 2}" for number in (1, 2)}
    memory = Memory({}, {}, 3 << 30, nodes)
    lines = on_terminal(render(state, memory, START + 1, width, 24), width)
    assert "node" in line_of(lines, "site ").split()
    assert [line_of(lines, f"site-{number}").split()[2] for number in (1, 2)] == [
        "machine-1",
        "machine-0",
    ]
    assert "machine" not in line_of(lines, "site-3")
    assert max(map(len, lines)) <= width


def test_a_wide_terminal_has_more_columns_and_longer_bars() -> None:
    half = dict.fromkeys(["site-1", "site-2", "site-3", "site-4"], 32 * MIB)
    state = state_after(*started(4), Progress(time=START + 1, down=half, up={}, size=1))
    narrow, wide = frame(state, 80), frame(state, 200)
    assert "peak RSS" not in line_of(narrow, "site ")
    assert line_of(wide, "site ").split() == [
        *("site", "state", "time", "rate", "down", "up", "weight", "RSS", "peak", "RSS"),
    ]
    for start in ("site-1", "down    \u2501"):
        assert line_of(wide, start).count("\u2501") > 2 * line_of(narrow, start).count("\u2501")


def test_sites_that_processes_share_are_told_by_process_and_in_all() -> None:
    work = {
        "worker-1": WorkerActivity("training", "site-20", 12, 50, START + 1, MIB),
        "worker-2": WorkerActivity("downloading", "site-51", 0, 1, START + 3, MIB // 2),
    }
    failed = [
        SiteFailed(time=START, round=1, site=f"site-{n}", reason=f"out of order\n{n}")
        for n in range(3)
    ]
    state = state_after(
        *shared(),
        *failed,
        Progress(time=START + 4, down={}, up={}, size=MIB, sent=3 * MIB, answered=8, workers=work),
    )
    lines = frame(state, 120, now=START + 4)
    assert "1,000 sites in 2 processes" in lines[1]
    assert line_of(lines, "sites").endswith("20 of 100 done, 3 failed, 14 s left, 5.0/s")
    assert "site-20, 13 of 50" in line_of(lines, "worker-1")
    assert "50%" in line_of(lines, "worker-2")
    heads = [line.split()[0] for line in lines if line[:5] in ("site-", "worke")]
    assert heads == ["worker", "site-2", "site-1", "site-0", *WORKERS]
    assert "round 1: out of order\\n2" in line_of(lines, "site-2")
    assert "3.0 MiB in all" in line_of(lines, "down")


def test_of_a_thousand_failures_the_last_are_named_and_the_rest_counted() -> None:
    state = state_after(
        *shared(2000, 2000),
        *(SiteFailed(time=START, round=1, site=f"site-{n}", reason="no") for n in range(1000)),
    )
    lines = frame(state)
    shown = [line.split()[0] for line in lines if line.startswith("site-")]
    assert shown[0] == "site-999"
    assert f"... and {1000 - len(shown):,} more sites that failed" in lines
    assert {"worker-1", "worker-2"} <= {line.split()[0] for line in lines if line}


def test_a_site_that_answers_again_is_no_failure_any_more_unless_it_is_benched() -> None:
    state = state_after(
        *shared(),
        SiteFailed(time=START, round=1, site="site-1", reason="no"),
        SiteFailed(time=START, round=1, site="site-2", reason="no"),
        SiteBenched(time=START, round=1, site="site-2", failures=2),
        RoundStarted(time=START, round=2, sites=["site-1"]),
        SiteUpdate(time=START, round=2, site="site-1", weight=1.0, metrics={}),
    )
    assert list(state.failures) == ["site-2"]
    assert "benched" in line_of(frame(state), "site-2")


@pytest.mark.parametrize("height", [12, 24, 40])
@pytest.mark.parametrize("clients", [1, 8, 64])
def test_a_frame_fits_the_height_and_counts_the_sites_it_leaves_out(
    clients: int, height: int
) -> None:
    lines = frame(state_after(*started(clients), evaluated(1, START, accuracy=0.5)), height=height)
    assert len(lines) <= height
    shown = sum(line.startswith("site-") for line in lines)
    left_out = [line for line in lines if line.startswith("... and")]
    assert left_out == ([f"... and {clients - shown} more"] if shown < clients else [])


def test_when_not_all_sites_fit_the_failed_and_the_slow_are_on_top() -> None:
    state = state_after(
        *started(6),
        SitePhaseChanged(time=START, round=1, site="site-1", state="ready"),
        SitePhaseChanged(time=START + 2, round=1, site="site-3", state="training"),
        SitePhaseChanged(time=START + 1, round=1, site="site-4", state="training"),
        SiteFailed(time=START, round=1, site="site-6", reason="out of memory"),
    )
    shown, hidden = choose(list(state.sites.values()), set(), 5)
    assert [site.name for site in shown] == ["site-6", "site-4", "site-3", "site-2", "site-5"]
    shown, _ = choose(list(state.sites.values()), {"site-5", "site-3"}, 4)
    assert [site.name for site in shown] == ["site-6", "site-3", "site-5", "site-4"]
    assert hidden == 1
    assert line_of(frame(state), "site-6").endswith("round 1: out of memory")


def sites_in(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith("site-")]


def test_where_all_sites_fit_the_failed_and_the_slow_are_on_top_as_well() -> None:
    state = state_after(
        *started(6),
        *(
            SitePhaseChanged(time=START, round=1, site=f"site-{n}", state="training")
            for n in range(1, 7)
        ),
        SiteFailed(time=START + 1, round=1, site="site-4", reason="out of memory"),
        *(
            SitePhaseChanged(time=START + 10, round=1, site=f"site-{n}", state="ready")
            for n in (1, 3, 5)
        ),
    )
    # Half of them took ten seconds, so nobody is slow before twenty.
    order = ["site-4", "site-1", "site-2", "site-3", "site-5", "site-6"]
    assert sites_in(frame(state, now=START + 19)) == order
    order = ["site-4", "site-2", "site-6", "site-1", "site-3", "site-5"]
    assert sites_in(frame(state, now=START + 21)) == order


def test_of_processes_that_share_sites_the_slow_are_on_top() -> None:
    work = {
        "worker-1": WorkerActivity("training", "site-20", 0, 1, START + 9, 0),
        "worker-2": WorkerActivity("training", "site-51", 0, 1, START + 1, 0),
    }
    progress = Progress(time=START, down={}, up={}, size=MIB, sent=0, answered=8, workers=work)
    state = state_after(*shared(), progress)

    def workers(now: float) -> list[str]:
        lines = frame(state, 120, now=now)
        return [line.split()[0] for line in lines if line.startswith("worker-")]

    # Eight are done by two: after ten seconds one takes two and a half, and after 1.5 less.
    assert workers(START + 1.5) == ["worker-1", "worker-2"]
    assert workers(START + 10) == ["worker-2", "worker-1"]


def test_sites_go_through_their_states_and_the_run_through_its_phases() -> None:
    state = state_after(*started())
    site = state.sites["site-1"]
    assert (state.phase, site.state) == ("training", "downloading")

    state.apply(SitePhaseChanged(time=START + 1, round=1, site="site-1", state="training"))
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
    state.apply(round_finished(1, START + 5))
    assert (state.phase, site.state) == ("round is over", "idle")

    state.apply(SitePhaseChanged(time=START + 6, round=1, site="site-1", state="downloading"))
    assert (state.phase, site.moved) == ("evaluating", 0)

    state.apply(evaluated(1, START + 7, accuracy=0.9123))
    lines = frame(state)
    assert line_of(lines, "scores").endswith("after round 1: accuracy 0.9123")
    assert line_of(lines, "1 ").split() == ["1", "7.50", "1.00", "2.00", "3.00", "1.00", *(
        "0.9123", "1.5000",
    )]  # fmt: skip
    state.apply(RunFinished(time=START + 8, status="finished"))
    assert state.phase == "finished"


def test_what_a_round_moved_is_settled_by_what_the_server_tells_in_the_end() -> None:
    state = state_after(
        *shared(),
        SiteUpdate(time=START, round=1, site="site-1", weight=1.0, metrics={}),
        round_finished(1, START + 1, down=5 * MIB, up=7 * MIB),
        RoundStarted(time=START + 1, round=2, sites=["site-1"]),
        Progress(time=START + 1, down={}, up={}, size=MIB, sent=2 * MIB),
    )
    assert (state.down.total, state.up.total) == (7 * MIB, 7 * MIB)


def test_rounds_that_are_over_in_a_moment_are_told_as_a_rate() -> None:
    state = state_after(*shared(1000, 2))
    for number in range(1, 9):
        now = START + number / 10
        for site in ("site-1", "site-2"):
            state.apply(SiteUpdate(time=now, round=number, site=site, weight=1.0, metrics={}))
        state.apply(round_finished(number, now))
        state.apply(RoundStarted(time=now, round=number + 1, sites=["site-1", "site-2"]))
    lines = frame(state, now=START + 0.9)
    assert line_of(lines, "sites").endswith("20 answers/s")
    assert line_of(lines, "rounds").endswith("80%  8 of 10, 0.10 s each")
    assert line_of(lines, "worker-1").split()[1:3] == ["at", "work"]


def test_no_name_however_long_or_odd_breaks_a_line() -> None:
    many = {f"[red]metric\x1b[31m-{number}": 0.1 for number in range(9)}
    state = state_after(
        *started(2, job="a-very-long-name-of-a-job-" * 4), evaluated(1, START, **many)
    )
    state.apply(SitePhaseChanged(time=START, round=1, site="hospital-" * 9, state="training"))
    lines = frame(state)
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)
    assert any("[red]metric" in line for line in lines)


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(1, 2, "\u2501" * 4 + "\u2578"), (0, 0, ""), (999, 1000, "\u2501" * 8 + "\u2578")],
)
def test_a_bar_can_be_read_without_colour_and_is_full_at_the_end_alone(
    done: int, total: int, shown: str
) -> None:
    assert "".join(on_terminal(bar(done, total, "red"), 9)) == shown
    in_ascii = shown.replace("\u2501", "-").replace("\u2578", "")
    assert "".join(on_terminal(bar(done, total, "red"), 9, "ascii")) == in_ascii


def test_before_the_first_event_there_is_a_line_already() -> None:
    assert frame(RunState(began=START)) == ["flstream  starting  1.0 s"]


NAMES = st.sampled_from(
    ["site-1", "site-2", "site-77", "\u75c5\u9662" * 9, "x" * 90, "\x1b[31m\n", "e\u0301\u200b"]
)
TIMES = st.floats(START, START + 1e5)
SIZES = st.integers(0, 1 << 50)
ROUNDS = st.integers(0, 12)
METRICS = st.dictionaries(NAMES, st.none() | st.floats(), max_size=4)
WORKS = st.builds(
    WorkerActivity,
    state=st.sampled_from(["downloading", "training", "evaluating"]),
    site=NAMES,
    over=st.integers(0, 60),
    sites=st.integers(1, 64),
    since=TIMES,
    down=SIZES,
)
EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(run_started, st.integers(1, 40), st.sampled_from([[], WORKERS]), NAMES),
    st.builds(ModelReady, time=TIMES, bytes=SIZES, tensors=SIZES, digest=st.just("")),
    st.builds(ProcessReady, time=TIMES, process=NAMES, pid=SIZES, idle_rss=SIZES),
    st.builds(RoundStarted, time=TIMES, round=ROUNDS, sites=st.lists(NAMES, max_size=4)),
    st.builds(
        SitePhaseChanged,
        time=TIMES,
        round=ROUNDS,
        site=NAMES,
        state=st.sampled_from(["downloading", "training", "evaluating", "ready"]),
    ),
    st.builds(
        SiteUpdate, time=TIMES, round=ROUNDS, site=NAMES, weight=st.floats(), metrics=METRICS
    ),
    st.builds(SiteFailed, time=TIMES, round=ROUNDS, site=NAMES, reason=st.text()),
    st.builds(SiteBenched, time=TIMES, round=ROUNDS, site=NAMES, failures=ROUNDS),
    st.builds(round_finished, ROUNDS, TIMES, SIZES, SIZES),
    st.builds(
        Progress,
        time=TIMES,
        down=st.dictionaries(NAMES, SIZES, max_size=3),
        up=st.dictionaries(NAMES, SIZES, max_size=3),
        size=SIZES,
        sent=SIZES,
        answered=ROUNDS,
        folded=SIZES,
        workers=st.dictionaries(st.sampled_from(WORKERS), WORKS),
    ),
    METRICS.flatmap(lambda metrics: st.builds(evaluated_with, ROUNDS, TIMES, st.just(metrics))),
)


def evaluated_with(number: int, time: float, metrics: dict[str, float]) -> AnyEvent:
    event = evaluated(number, time)
    event.metrics = metrics
    return event


@settings(max_examples=200)
@given(
    st.lists(EVENTS, max_size=25),
    st.integers(20, 250),
    st.integers(5, 80),
    st.floats(START - 10, START + 2e5),
    st.booleans(),
)
def test_whatever_happens_a_frame_fits_the_terminal(
    events: list[AnyEvent], width: int, height: int, now: float, ascii_only: bool
) -> None:
    state = state_after(run_started(20, []), *events)
    memory = Memory({"server": 1 << 60, "site-1": 0}, {"worker-1": 1 << 40}, 1 << 60)
    encoding = "ascii" if ascii_only else "utf-8"
    lines = on_terminal(render(state, memory, now, width, height), width, encoding)
    assert 1 <= len(lines) <= height
    for line in lines:
        assert cell_len(line) <= width
        assert line.isprintable()


def effect(name: str, time: float) -> EffectDone:
    return EffectDone(
        time=time, effect=1, name=name, round=1, request="", arguments="", is_final=True
    )


def test_a_round_is_evaluated_before_its_end() -> None:
    state = state_after(*started(2))
    for site in ("site-1", "site-2"):
        state.apply(SitePhaseChanged(time=START + 1, round=1, site=site, state="ready"))
    state.apply(effect("fold", START + 2))
    state.apply(SitePhaseChanged(time=START + 3, round=1, site="site-1", state="downloading"))
    assert (state.phase, state.over, state.asked) == ("evaluating", 0, 2)
    state.apply(evaluated(1, START + 5, accuracy=0.75))
    assert state.history == []
    state.apply(round_finished(1, START + 6))
    (over,) = state.history
    assert (over.number, over.scores, over.evaluate) == (1, {"accuracy": 0.75}, 1.0)
    text = "\n".join(map(str, frame(state)))
    assert "0.7500" in text


def test_a_round_that_asks_sites_one_after_another_adds_them_up() -> None:
    state = state_after(*started(3)[:-4])
    state.apply(RoundStarted(time=START, round=1, sites=["site-1"]))
    state.apply(SitePhaseChanged(time=START + 1, round=1, site="site-1", state="ready"))
    assert (state.over, state.asked) == (1, 1)
    state.apply(RoundStarted(time=START + 2, round=1, sites=["site-2"]))
    assert (state.phase, state.over, state.asked) == ("training", 1, 2)
    # One that is asked once more has its answer before it.
    state.apply(RoundStarted(time=START + 3, round=1, sites=["site-1"]))
    assert (state.over, state.asked) == (0, 2)
    # A round is as long as all of it.
    assert state.pace.seconds_a_round is None
    state.apply(evaluated(1, START + 5, accuracy=0.75))
    state.apply(effect("evaluate", START + 5))
    state.apply(RoundStarted(time=START + 6, round=1, sites=["site-3"]))
    assert (state.phase, state.over, state.asked) == ("training", 0, 1)
    state.apply(RoundStarted(time=START + 10, round=2, sites=["site-1"]))
    assert state.pace.seconds_a_round == 10
