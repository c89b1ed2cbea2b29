"""Beside the walk: the same results in the same order, and every mistake where it belongs."""

import gc
import threading
import weakref
from contextlib import suppress

import pytest

from flstream.aggregation.ahead import WriteBehind, read_ahead
from flstream.errors import CheckpointError
from flstream.model.layout import Layout

LAYOUT = Layout.of([("w", "U8", (100,))])


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_steps_are_done_while_the_result_of_one_before_them_is_used(depth):
    begun = [threading.Event() for _ in range(6)]

    def step(number):
        begun[number].set()
        return number

    with read_ahead(((lambda n=n: step(n)) for n in range(6)), depth) as results:
        assert next(results) == 0
        assert begun[depth].wait(5)
        assert not begun[depth + 1].is_set()  # not further ahead than that
        assert list(results) == [1, 2, 3, 4, 5]


def test_what_a_step_raises_is_raised_where_its_result_is_asked_for():
    def fail():
        raise CheckpointError("broken")

    with read_ahead(iter([lambda: 1, fail, lambda: 3]), 2) as results:
        assert next(results) == 1
        with pytest.raises(CheckpointError, match="broken"):
            next(results)


def test_what_is_in_line_after_a_step_that_failed_is_not_done():
    done = []

    def fail():
        raise CheckpointError("broken")

    with (
        pytest.raises(CheckpointError, match="broken"),
        read_ahead(iter([lambda: 1, fail, lambda: done.append(3)]), 2) as results,
    ):
        list(results)
    assert done == []


def test_an_error_keeps_nothing_alive_once_it_was_handled():
    def fail():
        raise CheckpointError("broken")

    def walk():
        buffer = Buffer()
        buffers.add(buffer)
        with read_ahead(iter([fail]), 1) as results:
            next(results)

    buffers = weakref.WeakSet()
    gc.disable()
    try:
        with suppress(CheckpointError):
            walk()
        assert not buffers
    finally:
        gc.enable()


class Buffer:
    """What a walk has while it lasts."""


def test_no_step_is_under_way_once_the_block_is_left():
    threads = threading.active_count()
    with read_ahead(iter([lambda: 1, lambda: 2, lambda: 3]), 2) as results:
        next(results)
    assert threading.active_count() == threads


def test_ranges_are_written_in_order_and_before_the_end():
    written = []
    behind = WriteBehind(LAYOUT, lambda start, view: written.append((start, bytes(view))))
    for start in range(0, 100, 10):
        (view,) = behind.views(start, start + 10)
        view[:] = bytes([start]) * 10
        behind.commit(start, start + 10)
    behind.close()
    assert written == [(start, bytes([start]) * 10) for start in range(0, 100, 10)]


@pytest.mark.parametrize("ranges", [1, 2])
def test_what_writing_raises_is_raised_by_the_next_range_or_the_end(ranges):
    def refuse(start, view):
        raise CheckpointError("the disk is full")

    behind = WriteBehind(LAYOUT, refuse)

    def write_all():
        for start in range(ranges):
            behind.views(start, start + 1)
            behind.commit(start, start + 1)
        behind.close()

    with pytest.raises(CheckpointError, match="full"):
        write_all()
    behind.close()
