"""Rates are of the last moments, and the time left is told only where something speaks for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import MIB, START, round_finished, shared, started, state_after

from flstream.report.live.progress import (
    download_done,
    seconds_left,
    seconds_left_of,
    task_done,
)
from flstream.report.live.rates import Pace, Throughput
from flstream.report.text import format_clock, format_elapsed, format_left, steady_bytes
from flstream.telemetry.events import Progress, RoundStarted, RunFinished, SiteUpdate


def test_throughput_is_of_the_last_moments_only() -> None:
    moved = Throughput()
    moved.add(START, 10 * MIB)
    moved.add(START + 0.5, 10 * MIB)
    assert moved.per_second(START + 1) == 20 * MIB
    assert moved.per_second(START + 2) == 10 * MIB
    assert moved.per_second(START + 60) == 0
    assert moved.total == 20 * MIB


def test_a_burst_is_not_taken_for_a_rate() -> None:
    moved = Throughput()
    moved.add(START, 10)
    assert moved.per_second(START) == 20


def test_a_storm_of_answers_takes_no_memory() -> None:
    moved = Throughput()
    for number in range(30_000):
        moved.add(START + number / 10_000, 1)
    assert len(moved._moved) <= 21
    assert moved.per_second(START + 3) == pytest.approx(10_000, rel=0.1)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1 << 60))), st.integers(0, 1 << 60))
def test_a_throughput_is_never_negative_and_ends_at_what_it_is_settled_for(
    moves: list[tuple[float, int]], total: int
) -> None:
    moved = Throughput()
    for time, count in sorted(moves):
        moved.add(time, count)
        assert moved.per_second(time) >= 0
    moved.settle(200, total)
    assert moved.total == total
    assert moved.per_second(200) >= 0


def test_the_time_left_follows_the_last_rounds_and_forgets_the_first() -> None:
    pace = Pace()
    assert pace.seconds_left(9, START) is None
    pace.begin_round(START)
    assert pace.seconds_left(9, START + 5) is None
    pace.begin_round(START + 20)
    assert pace.seconds_left(8, START + 25) == 15 + 8 * 20
    pace.begin_round(START + 24)
    assert pace.seconds_left(7, START + 25) == 3 + 7 * 4
    for number in range(1, 20):
        pace.begin_round(START + 24 + 6 * number)
    assert pace.seconds_a_round == 6
    assert pace.seconds_left(0, START + 9999) == 0


def test_the_job_s_time_left_is_told_from_the_second_round_to_the_end() -> None:
    state = state_after(*started())
    assert seconds_left(state, START + 3) is None
    state.apply(round_finished(1, START + 8))
    state.apply(RoundStarted(time=START + 10, round=2, sites=["site-1"]))
    assert seconds_left(state, START + 10) == 9 * 10
    state.apply(RunFinished(time=START + 11, status="stopped"))
    assert seconds_left(state, START + 11) is None


def test_a_task_s_time_left_is_told_where_its_parts_come_one_after_another() -> None:
    own = state_after(
        *started(2), SiteUpdate(time=START, round=1, site="site-1", weight=1.0, metrics={})
    )
    done = task_done(own, START + 10)
    assert done is not None
    assert (done.amount, done.total, done.seconds_left) == (1, 2, None)

    many = state_after(*shared(), Progress(time=START, down={}, up={}, size=MIB, answered=25))
    done = task_done(many, START + 10)
    assert done is not None
    assert (done.amount, done.total, done.seconds_left) == (25, 100, 30)

    moving = Progress(time=START, down={"site-1": 16 * MIB}, up={}, size=64 * MIB)
    downloading = state_after(*started(1), moving)
    done = download_done(downloading, START + 2)
    assert done is not None
    assert (done.amount, done.total, done.seconds_left) == (16 * MIB, 64 * MIB, 6)


@pytest.mark.parametrize(
    ("done", "seconds", "left"), [(0.5, 10.0, 10.0), (0.01, 10.0, None), (0.5, 0.2, None)]
)
def test_too_little_says_nothing_of_the_rest(
    done: float, seconds: float, left: float | None
) -> None:
    assert seconds_left_of(done, seconds) == left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.2, "1 s"), (59.1, "1m 00s"), (59.0, "59 s"), (254, "4m 10s")),
        *((599, "10m 00s"), (2500, "42m"), (12_000, "3h 20m")),
    ],
)
def test_the_time_left_is_only_as_exact_as_it_is_known(seconds: float, text: str) -> None:
    assert format_left(seconds) == text


def test_numbers_that_change_keep_their_shape() -> None:
    assert steady_bytes(2 * MIB) == "2.0 MiB"
    assert steady_bytes(2 * MIB + 100_000) == "2.1 MiB"
    assert steady_bytes(1023) == "1023 B"
    assert format_elapsed(7) == "7.0 s"
    assert format_clock(3_725.9) == "01:02:05"
    assert format_clock(-1) == "00:00:00"
