"""The same bits, whichever updates are folded together and whether or not ranges are read ahead."""

from folding import fold_into, shifted, update
from nightly_cases import first_and_nightly
from support import tensor

from flstream.aggregation import steps, update_set
from flstream.aggregation.optimizers import Optimization, ServerOptimizer
from flstream.aggregation.rules import AggregationRule
from flstream.model.memory import MemoryBody

BASE = {
    "F32.a": tensor("F32", (50_000,)),
    "BF16.b": tensor("BF16", (9000,)),
    "I32.c": tensor("I32", (7001,)),
    "BOOL.d": tensor("BOOL", (333,)),
    "F64.e": tensor("F64", (40,)),
}
STEP = 4096  # so that a range has been used for others many times before the walk is over


def updates(count, kind):
    made = []
    for number in range(count):
        state = shifted(BASE, number + 1)
        if kind == "partial":  # regions that only the first, the last, or every other update has
            state = {
                name: value
                for place, (name, value) in enumerate(state.items())
                if (number + place) % 2 == 0 or place == number
            }
        weight = 1.0 if kind == "plain" else 0.5 + number
        params_type = "DIFF" if kind == "difference" and number % 2 else "FULL"
        made.append(update(f"site-{number}", state, weight, params_type, kind == "partial"))
    return made


def folded(count, kind, rule, is_optimized):
    optimization = None
    if is_optimized:
        optimizer = ServerOptimizer("fedadam", 0.1, 0.9, 0.99, 1e-3)
        layout = optimizer.state_layout(MemoryBody.of(BASE).layout, rule)
        optimization = Optimization(optimizer, None, MemoryBody.allocate(layout))
    sink, digest = fold_into(BASE, updates(count, kind), rule, STEP, optimization)
    return bytes(sink.body), digest


@first_and_nightly("is_optimized", [False, True], ids=["", "optimized"])
@first_and_nightly("method", ["mean", "median"])
@first_and_nightly("kind", ["plain", "weighted", "difference", "partial"])
@first_and_nightly("count", [1, 2, 3, 4, 5], brief=20)
def test_reading_ahead_and_folding_together_do_not_change_a_bit(
    monkeypatch, count, kind, method, is_optimized
):
    rule = AggregationRule(method=method, on_nonfinite="allow")
    monkeypatch.setattr(update_set, "RANGES_TOGETHER", 1)
    one_by_one = folded(count, kind, rule, is_optimized)
    monkeypatch.setattr(update_set, "RANGES_TOGETHER", steps.RANGES_TOGETHER)
    assert folded(count, kind, rule, is_optimized) == one_by_one
    monkeypatch.setattr(update_set, "_LEAST_READ_AHEAD_BYTES", 0)
    assert folded(count, kind, rule, is_optimized) == one_by_one
