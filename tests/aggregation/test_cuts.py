"""The same bits, however a body is cut, whichever updates are folded together or read ahead."""

from dataclasses import replace

import pytest
import torch
from folding import MemorySink, fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly_cases import first_and_nightly
from support import FOLDED, cuts, every_kind, tensor

from flstream.aggregation import steps, update_set
from flstream.aggregation.optimizers import Optimization, ServerOptimizer
from flstream.aggregation.private import GaussianMechanism
from flstream.aggregation.rules import AggregationRule
from flstream.model.memory import MemoryBody

RULES = {
    "mean": AggregationRule(),
    "median": AggregationRule(method="median"),
    "trimmed_mean": AggregationRule(method="trimmed_mean", trim=0.25),
    "krum": AggregationRule("krum"),
    "multi_krum": AggregationRule("multi_krum", byzantine=2, chosen=3),
    "bulyan": AggregationRule("bulyan", byzantine=1),
    "geometric_median": AggregationRule("geometric_median"),
    "private": AggregationRule().private(GaussianMechanism(7.0, 4, 0.3, "test")),
}
OPTIMIZERS = ("fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn")
SMALL = every_kind(FOLDED)
LARGE = {
    "F32.a": tensor("F32", (70_001,)),
    "BF16.b": tensor("BF16", (9000,)),
    "I32.c": tensor("I32", (7001,)),
    "BOOL.d": tensor("BOOL", (333,)),
    "F64.e": tensor("F64", (3,)),  # several in one block
    "F64.f": tensor("F64", (4,)),
}


def sent(base, count, kind, seed=1):
    """Updates of which, if partial, regions are in the first, the last, or every other alone."""
    made = []
    for number in range(count):
        state = shifted(base, seed + number)
        if kind == "partial":
            state = {
                name: value
                for place, (name, value) in enumerate(state.items())
                if (number + place) % 2 == 0 or place == number
            }
        weight = 1.0 if kind == "plain" else 0.5 + number
        params_type = "DIFF" if kind == "difference" and number % 2 else "FULL"
        made.append(update(f"site-{number}", state, weight, params_type, kind == "partial"))
    return made


def folded(case, base, updates, step=1 << 20, clip_norm=None):
    """The bits of a model, and of what an optimizer keeps."""
    rule, optimization, state = RULES.get(case, RULES["mean"]), None, None
    if clip_norm is not None:
        rule = replace(rule, clip_norm=clip_norm)
    if case in OPTIMIZERS:
        optimizer = ServerOptimizer(case, 0.1, 0.9, 0.99, 1e-3, 9)
        state = MemorySink(optimizer.state_layout(MemoryBody.of(base).layout, rule))
        optimization = Optimization(optimizer, None, state)
    sink, digest = fold_into(base, updates, rule, step, optimization)
    return bytes(sink.body), digest, state and bytes(state.body)


@pytest.mark.parametrize("case", [*RULES, *OPTIMIZERS])
@given(
    step=cuts(1400),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["weighted", "difference", "partial"]),
    clip_norm=st.sampled_from([None, 20.0, "median"]),
)
@settings(max_examples=12, deadline=None)
def test_any_step_gives_the_same_bits(case, step, seed, kind, clip_norm):
    clip_norm = None if case == "private" else clip_norm
    updates = sent(SMALL, 7, kind, seed)
    due = folded(case, SMALL, updates, clip_norm=clip_norm)
    assert folded(case, SMALL, updates, step, clip_norm) == due


@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize("step", [4096, 65_536 + 16])
def test_so_does_a_model_of_many_blocks(case, step):
    updates = sent(LARGE, 7, "weighted")
    clip_norm = None if case == "private" else 7.0
    assert folded(case, LARGE, updates, step, clip_norm) == folded(
        case, LARGE, updates, clip_norm=clip_norm
    )


@first_and_nightly("case", ["mean", "median", "fedadam"], brief=2)
@first_and_nightly("kind", ["partial", "plain", "weighted", "difference"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_reading_ahead_and_folding_together_change_no_bit(monkeypatch, count, kind, case):
    updates = sent(LARGE, count, kind)
    monkeypatch.setattr(update_set, "RANGES_TOGETHER", 1)
    # Steps so short that a range has been used for others many times before the walk is over.
    one_by_one = folded(case, LARGE, updates, 4096)
    monkeypatch.setattr(update_set, "RANGES_TOGETHER", steps.RANGES_TOGETHER)
    assert folded(case, LARGE, updates, 4096) == one_by_one
    monkeypatch.setattr(update_set, "_LEAST_READ_AHEAD_BYTES", 0)
    assert folded(case, LARGE, updates, 4096) == one_by_one


def test_a_repeated_fold_from_the_same_state_gives_the_same_bits():
    base, updates = {"F32.w": torch.ones(100)}, sent({"F32.w": torch.ones(100)}, 2, "weighted")
    assert folded("fedadam", base, updates) == folded("fedadam", base, updates)
