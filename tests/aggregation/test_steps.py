"""Steps: whole frames, and buffers within the budget however many updates there are."""

import tracemalloc
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly_cases import first_and_nightly
from support import FOLDED, entries, tensor

from flstream.aggregation.optimizers import Optimization, ServerOptimizer
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import plan_steps
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.walk import fold_updates
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

MIB = 1 << 20
RULES = [
    AggregationRule(),
    AggregationRule(method="median"),
    AggregationRule(clip_norm=1.0),
    AggregationRule(method="krum"),
]


@given(
    given_entries=entries(FOLDED),
    rule=st.sampled_from(RULES),
    chunk_size=st.one_of(st.just(0), st.integers(1, 1 << 20).map(lambda count: 16 * count)),
    budget=st.integers(MIB, 1 << 30),
    updates=st.integers(1, 1000),
    share=st.floats(0, 1),
)
@settings(deadline=None)
def test_a_step_is_whole_frames_no_longer_than_a_chunk(
    given_entries, rule, chunk_size, budget, updates, share
):
    step, frame = plan_steps(
        Layout.of(given_entries),
        rule,
        updates=updates,
        chunk_size=chunk_size,
        memory_budget=budget,
        partial=int(updates * share),
    )
    assert step % frame == 0
    assert frame % 16 == 0
    assert 0 < frame <= (chunk_size or step)


@pytest.mark.parametrize("budget", [MIB, MIB + MIB // 2, 2 * MIB])
@pytest.mark.parametrize("code", sorted(FOLDED))
def test_the_least_budget_still_has_room_for_steps_of_some_length(code, budget):
    layout = Layout.of([("a", code, (4 * MIB,))])
    cases = [(AggregationRule(), 4, False), (AggregationRule(), 1000, True)]
    for rule, updates, summing in [*cases, (AggregationRule("krum"), 3, False)]:
        step, frame = plan_steps(
            layout,
            rule,
            updates=updates,
            chunk_size=2 * MIB,
            memory_budget=budget,
            summing=summing,
        )
        assert step >= frame >= (4 if rule.compares else 8) << 10


class Folder:
    """A model in files, and walks over it with a cohort of updates of one file."""

    def __init__(self, path, model, update=None):
        self.path = path
        write_checkpoint(path / "base", MemoryBody.of(model))
        write_checkpoint(path / "update", MemoryBody.of(update or model))
        self.base, self.source = FileSource(path / "base"), FileSource(path / "update")

    def updates(self, count, params_type="FULL", partial=False):
        return [
            UpdateSource(f"site-{i}", lambda: self.source, 1.0, params_type, partial)
            for i in range(count)
        ]

    def plan(self, rule, updates, budget, chunk_size=2 * MIB, summing=False):
        partial = sum(update.partial for update in updates)
        how = {"chunk_size": chunk_size, "memory_budget": budget, "summing": summing}
        return plan_steps(self.base.layout, rule, updates=len(updates), partial=partial, **how)

    def peak(self, rule, updates, budget, chunk_size=2 * MIB, optimizer=None):
        """The bytes that a walk takes at the most."""
        steps, optimization = self.plan(rule, updates, budget, chunk_size), None
        with ExitStack() as stack:
            if optimizer is not None:
                layout = optimizer.state_layout(self.base.layout, rule)
                state = stack.enter_context(FileSink(self.path / "state", layout))
                optimization = Optimization(optimizer, None, state)
            sink = stack.enter_context(FileSink(self.path / "next", self.base.layout))
            walk = self.base, updates, rule, sink, steps, lambda _: None, optimization
            return peak_of(fold_updates, *walk)


def peak_of(call, *args):
    np.zeros(1) + 1  # whatever NumPy sets up at first use is not the walk's
    tracemalloc.start()
    call(*args)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def of(code, size):
    return {"a": tensor(code, (size // tensor(code, ()).element_size(),))}


@first_and_nightly("params_type", ["FULL", "DIFF"])
@first_and_nightly("code", ["BF16", "U8", "F64", "F32", "F16", "F8_E5M2", "I64", "U64"], brief=2)
@pytest.mark.parametrize("chunk_size", [4096, 2 * MIB])
def test_the_buffers_of_a_mean_stay_within_the_budget(tmp_path, code, params_type, chunk_size):
    folder = Folder(tmp_path, of(code, 3 * MIB))
    for budget in (MIB, 2 * MIB, 4 * MIB):
        peak = folder.peak(AggregationRule(), folder.updates(3, params_type), budget, chunk_size)
        # What Python keeps for itself, its threads and objects, is no buffer.
        assert peak <= budget + (64 << 10)


@first_and_nightly(
    ("rule", "count", "budget"),
    [
        (AggregationRule(method="median"), 4, 4 * MIB),
        (AggregationRule(method="median"), 64, 4 * MIB),
        (AggregationRule(method="trimmed_mean", clip_norm=1.0), 100, 8 * MIB),
        (AggregationRule(method="median"), 1000, 48 * MIB),
        (AggregationRule(method="krum"), 16, 4 * MIB),
        (AggregationRule(method="bulyan"), 100, 8 * MIB),
        (AggregationRule(method="geometric_median", clip_norm="median"), 64, 8 * MIB),
        (AggregationRule(), 300, 4 * MIB),
        (AggregationRule(clip_norm=1.0), 64, 4 * MIB),
    ],
)
@first_and_nightly("partial", [True, False])
def test_and_so_do_those_of_any_rule_for_any_number_of_updates(
    tmp_path, rule, count, budget, partial
):
    folder = Folder(tmp_path, of("F32", max(96 << 10, 12 * MIB // count)))
    # What Python keeps of an update, its objects, is no buffer.
    assert folder.peak(rule, folder.updates(count, "DIFF", partial), budget) <= (
        budget + 2048 * count
    )


@pytest.mark.parametrize("count", [3, 16])
def test_and_those_of_updates_that_begin_in_the_middle_of_a_frame(tmp_path, count):
    model = {"a": tensor("F32", (100_001,)), "b": tensor("F32", (686_431,))}
    folder = Folder(tmp_path, model, {"b": model["b"]})
    updates = folder.updates(count, "DIFF", partial=True)
    assert folder.peak(AggregationRule(), updates, 4 * MIB) <= 4 * MIB + 2048 * count


@first_and_nightly("code", ["BF16", "F32", "I32"])
def test_and_those_of_an_optimiser_and_of_a_partial_sum(tmp_path, code):
    budget, rule, folder = 4 * MIB, AggregationRule(), Folder(tmp_path, of(code, 3 * MIB))
    for kind in ("fedavgm", "fedyogi"):
        optimizer = ServerOptimizer(kind, 0.1, 0.9, 0.99, 1e-3)
        assert folder.peak(rule, folder.updates(3), budget, optimizer=optimizer) <= budget
    updates = folder.updates(4)
    steps = folder.plan(rule, updates, budget, summing=True)
    partial_sum = PartialSum(tmp_path / "sum", folder.base, rule, "round 1")
    partial_sum.add(updates[:2], steps, lambda _: None)
    assert peak_of(partial_sum.add, updates[2:], steps, lambda _: None) <= budget
    with FileSink(tmp_path / "next", folder.base.layout) as sink:
        assert peak_of(partial_sum.finish, sink, steps, lambda _: None) <= budget
