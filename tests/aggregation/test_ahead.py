"""Beside the walk, and before it: read ahead or summed in steps, the bits are those of one walk."""

import gc
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from folding import MemorySink, fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FOLDED, cuts, every_kind, tensor

from flstream.aggregation import steps, update_set
from flstream.aggregation.ahead import WriteBehind, read_ahead
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError, CheckpointError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

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


NAMES = sorted(every_kind(FOLDED))


def quiet(_):
    pass


def sums(folder, base, rule=None):
    return PartialSum(folder / "sum.safetensors", MemoryBody.of(base), rule or AggregationRule())


def finished(partial_sum, base, rule=None, step=1 << 20):
    return fold_into(base, [], rule, step, earlier=partial_sum)[1]


@given(
    data=st.data(),
    groups=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    steps=st.lists(cuts(1400), min_size=6, max_size=6),
    clip_norm=st.sampled_from([None, 5.0]),
    exclude=st.sampled_from([[], ["F32", "I64"]]),
)
@settings(max_examples=10, deadline=None)
def test_a_sum_in_several_steps_has_the_bits_of_one_walk(data, groups, steps, clip_norm, exclude):
    base, rule = every_kind(FOLDED), AggregationRule(clip_norm=clip_norm, exclude=exclude)
    updates = []
    for place in range(sum(groups)):
        names = data.draw(st.sampled_from([NAMES, NAMES[::2], NAMES[5:20]]))
        state = {name: shifted(base, place)[name] for name in names}
        kind = data.draw(st.sampled_from(["FULL", "DIFF"]))
        weight = data.draw(st.floats(1e-3, 1e3))
        updates.append(update(f"site-{place}", state, weight, kind, partial=True))
    due = fold_into(base, updates, rule)[1]
    with TemporaryDirectory() as folder:
        left, partial_sum = list(updates), sums(Path(folder), base, rule)
        for size, step in zip(groups, steps, strict=False):
            now, left = left[:size], left[size:]
            partial_sum.add(now, step, quiet)
        assert partial_sum.sites == [each.site for each in updates]
        assert finished(partial_sum, base, rule, steps[-1]) == due
        assert os.listdir(folder) == ["sum.safetensors"]


def test_an_addition_that_fails_leaves_the_sums_before(tmp_path):
    base = {"w": torch.zeros(4096)}
    updates = [update(f"site-{i}", {"w": torch.full((4096,), 0.1 + i)}, 1.0 + i) for i in range(3)]
    partial_sum = sums(tmp_path, base)
    partial_sum.add(updates[:1], 4096, quiet)

    def on_range(done):
        if done > 8192:
            raise AggregationError("stopped")

    with pytest.raises(AggregationError, match="stopped"):
        partial_sum.add(updates[1:], 4096, on_range)
    assert partial_sum.sites == ["site-0"]
    assert [path.name for path in tmp_path.iterdir()] == ["sum.safetensors"]
    partial_sum.add(updates[1:], 4096, quiet)
    assert finished(partial_sum, base) == fold_into(base, updates)[1]


def test_what_does_not_belong_into_a_sum_is_refused(tmp_path):
    base = {"w": torch.zeros(4, dtype=torch.float64), "v": torch.zeros(4)}
    partial_sum = sums(tmp_path, base)
    with pytest.raises(AggregationError, match="no update was added"):
        finished(partial_sum, base)
    large = {**base, "w": torch.full((4,), 1e308, dtype=torch.float64)}
    partial_sum.add([update("site-1", large)], 16, quiet)
    with pytest.raises(ValueError, match="site-1 is in the partial sum already"):
        partial_sum.add([update("site-1", base)], 16, quiet)
    with pytest.raises(AggregationError, match=r"tensor 'w' at \[0\] has a sum that is not finite"):
        partial_sum.add([update("site-2", large)], 16, quiet)
    with pytest.raises(ValueError, match="median needs all updates at once"):
        sums(tmp_path, base, AggregationRule(method="median"))
