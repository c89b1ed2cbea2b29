"""Steps: buffers within the budget however many updates there are."""

from functools import partial

import pytest
from folding import opening, rule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly_cases import first_and_nightly
from support import FOLDED, entries, peak_of, tensor

from flstream.aggregation.optimizers import Optimization, ServerOptimizer, state_layout
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import plan_step
from flstream.aggregation.walk import fold_updates
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

MIB = 1 << 20
RULES = [
    AggregationRule(),
    AggregationRule(method="median"),
    AggregationRule(clip_norm=1.0),
    rule_of("krum"),
]


@given(
    given_entries=entries(FOLDED),
    rule=st.sampled_from(RULES),
    budget=st.integers(MIB, 1 << 30),
    updates=st.integers(1, 1000),
    buffered=st.booleans(),
)
@settings(deadline=None)
def test_a_step_is_a_multiple_of_16_up_to_2_mib(given_entries, rule, budget, updates, buffered):
    how = {"updates": updates, "memory_budget": budget, "buffered": updates * buffered}
    step = plan_step(Layout.of(given_entries), rule, **how)
    assert step % 16 == 0 < step <= 2 * MIB


@pytest.mark.parametrize("budget", [MIB, MIB + MIB // 2, 2 * MIB])
@pytest.mark.parametrize("code", sorted(FOLDED))
def test_the_least_budget_still_has_room_for_steps_of_some_length(code, budget):
    layout = Layout.of([("a", code, (4 * MIB,))])
    cases = [(AggregationRule(), 4, False), (AggregationRule(), 1000, True)]
    for rule, updates, summing in [*cases, (rule_of("krum"), 3, False)]:
        how = {"updates": updates, "memory_budget": budget, "summing": summing}
        assert plan_step(layout, rule, **how) >= (4 if rule.compares else 8) << 10


class Framed:
    """A source that keeps a frame, as one does that is received in frames."""

    def __init__(self, source, frame):
        self.layout = source.layout
        self.read = source.read
        self._frame = bytearray(frame)


class Folder:
    """A model in a file, and walks over it with a cohort of updates of the same file."""

    def __init__(self, path, model):
        self.path = path
        write_checkpoint(path / "base", MemoryBody.of(model))
        self.base = FileSource(path / "base")

    def updates(self, count, params_type="FULL", frame=0):
        """Updates, partial ones in frames where there is a length of them."""
        names, body = [f"site-{i}" for i in range(count)], partial(Framed, self.base, frame)
        return [opening(name, body, 1.0, params_type, frame > 0) for name in names]

    def plan(self, rule, updates, budget, **how):
        return plan_step(self.base.layout, rule, updates=updates, memory_budget=budget, **how)

    def peak(self, rule, updates, step, optimization=None, earlier=None):
        with FileSink(self.path / "next", self.base.layout) as sink:
            walk = self.base, updates, rule, sink, step, lambda _: None, optimization, earlier
            return peak_of(fold_updates, *walk)


def of(code, size):
    return {"a": tensor(code, (size // tensor(code, ()).element_size(),))}


@first_and_nightly("params_type", ["FULL", "DIFF"])
@first_and_nightly("code", ["BF16", "U8", "F64", "F32", "F16", "F8_E5M2", "I64", "U64"], brief=2)
def test_the_buffers_of_a_mean_stay_within_the_budget(tmp_path, code, params_type):
    folder, rule = Folder(tmp_path, of(code, 3 * MIB)), AggregationRule()
    for budget in (MIB, 2 * MIB, 4 * MIB):
        step = folder.plan(rule, 3, budget)
        # What Python keeps for itself, its threads and objects, is no buffer.
        assert folder.peak(rule, folder.updates(3, params_type), step) <= budget + (64 << 10)


@first_and_nightly(
    ("rule", "count", "budget"),
    [
        (AggregationRule(method="median"), 4, 4 * MIB),
        (AggregationRule(method="median"), 64, 4 * MIB),
        (rule_of("trimmed_mean", clip_norm=1.0), 100, 8 * MIB),
        (AggregationRule(method="median"), 1000, 48 * MIB),
        (rule_of("krum"), 16, 4 * MIB),
        (rule_of("bulyan"), 100, 8 * MIB),
        (rule_of("geometric_median", clip_norm="median"), 64, 8 * MIB),
        (AggregationRule(), 300, 4 * MIB),
        (AggregationRule(clip_norm=1.0), 64, 4 * MIB),
    ],
)
@first_and_nightly("buffered", [True, False])
def test_and_so_do_those_of_any_rule_and_number_of_updates(tmp_path, rule, count, budget, buffered):
    folder = Folder(tmp_path, of("F32", max(96 << 10, 12 * MIB // count)))
    step = folder.plan(rule, count, budget, buffered=count * buffered)
    updates = folder.updates(count, "DIFF", step * buffered)
    # What Python keeps of an update, its objects, is no buffer.
    assert folder.peak(rule, updates, step) <= budget + 2048 * count


@first_and_nightly("code", ["BF16", "F32", "I32"])
def test_and_those_of_an_optimiser_and_of_a_partial_sum(tmp_path, code):
    budget, rule, folder = 4 * MIB, AggregationRule(), Folder(tmp_path, of(code, 3 * MIB))
    updates, step = folder.updates(4), folder.plan(rule, 3, budget)
    for kind in ("fedavgm", "fedyogi"):
        optimizer = ServerOptimizer(kind, 0.1, 0.9, 0.99, 1e-3)
        layout = state_layout(optimizer.moments, folder.base.layout, rule)
        with FileSink(tmp_path / "state", layout) as state:
            optimization = Optimization(optimizer, None, state)
            assert folder.peak(rule, updates[:3], step, optimization) <= budget
    step = folder.plan(rule, 4, budget, summing=True)
    partial_sum = PartialSum(tmp_path / "sum", folder.base, rule)
    partial_sum.add(updates[:2], step, lambda _: None)
    assert peak_of(partial_sum.add, updates[2:], step, lambda _: None) <= budget
    assert folder.peak(rule, [], step, earlier=partial_sum) <= budget
