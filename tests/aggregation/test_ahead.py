"""Beside the walk: the same results in the same order, and every mistake where it belongs."""

import gc
import threading
import weakref
from contextlib import suppress

import pytest
from folding import MemorySink, fold_into, shifted, update
from support import FOLDED, every_kind, tensor

from flstream.aggregation import steps, update_set
from flstream.aggregation.ahead import WriteBehind, read_ahead
from flstream.aggregation.rules import AggregationRule
from flstream.errors import CheckpointError
from flstream.model.layout import Layout

LAYOUT = Layout.of([("w", "U8", (100,))])


def fail(*_):
    raise CheckpointError("broken")


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


def test_what_a_step_raises_is_raised_where_its_result_is_asked_for_and_ends_the_rest():
    done, threads = [], threading.active_count()
    steps = iter([lambda: 1, fail, lambda: done.append(3), lambda: done.append(4)])
    with read_ahead(steps, 1) as results:
        assert next(results) == 1
        with pytest.raises(CheckpointError, match="broken"):
            next(results)
    assert 4 not in done  # one that was queued already may have been made
    assert threading.active_count() == threads


def test_an_error_keeps_nothing_alive_once_it_was_handled():
    buffers = weakref.WeakSet()

    def walk():
        buffer = MemorySink(LAYOUT)
        buffers.add(buffer)
        with read_ahead(iter([fail]), 1) as results:
            next(results)

    gc.disable()
    try:
        with suppress(CheckpointError):
            walk()
        assert not buffers
    finally:
        gc.enable()


@pytest.mark.parametrize("ranges", [1, 2])
def test_what_writing_raises_is_raised_by_the_next_range_or_the_end(ranges):
    behind = WriteBehind(LAYOUT, fail)

    def write_all():
        for start in range(ranges):
            behind.views(start, start + 1)
            behind.commit(start, start + 1)
        behind.close()

    with pytest.raises(CheckpointError, match="broken"):
        write_all()
    behind.close()


@pytest.mark.parametrize("method", ["mean", "median"])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_reading_ahead_and_folding_together_change_no_bit(monkeypatch, count, partial, method):
    base = {**every_kind(FOLDED), "F32.large": tensor("F32", (70_001,))}
    updates, rule = [], AggregationRule(method)
    for number in range(count):
        state = shifted(base, 1 + number)
        if partial:  # tensors are in the first, the last, or every other update alone
            state = {
                name: value
                for place, (name, value) in enumerate(state.items())
                if (number + place) % 2 == 0 or place == number
            }
        params_type = "DIFF" if number % 2 else "FULL"
        updates.append(update(f"site-{number}", state, 0.5 + number, params_type, partial))
    monkeypatch.setattr(update_set, "RANGES_TOGETHER", 1)
    # Steps so short that a range has been used for others many times before the walk is over.
    one_by_one = fold_into(base, updates, rule, 4096)[1]
    monkeypatch.setattr(update_set, "RANGES_TOGETHER", steps.RANGES_TOGETHER)
    assert fold_into(base, updates, rule, 4096)[1] == one_by_one
    monkeypatch.setattr(update_set, "_LEAST_READ_AHEAD_BYTES", 0)
    assert fold_into(base, updates, rule, 4096)[1] == one_by_one
