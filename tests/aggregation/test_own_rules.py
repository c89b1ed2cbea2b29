"""Rules of a workflow's and of a user's own: what they are given, and what they may return."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from folding import MemorySink, documented, fold, sent

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.methods import OwnRule
from flstream.aggregation.optimizers import Optimization, ServerOptimizer, state_layout
from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError, LayoutError, WorkflowError
from flstream.model.joined import ZeroSource, joint_layout
from flstream.model.memory import MemoryBody

WIDTHS = {"a": torch.float64, "b": torch.float32, "c": torch.float16}


def joint(seed):
    """A model of floats and integers, with a body ``control`` that has a number for each float."""
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: torch.randn(7, 5, generator=generator).to(kind) for name, kind in WIDTHS.items()
    }
    state = {**values, "count": torch.randint(0, 100, (3,), generator=generator)}
    for name, value in values.items():
        state[f"control::{name}"] = torch.randn(value.shape, generator=generator).to(value.dtype)
    return state


UPDATES = sent([joint(i) for i in (1, 2, 3)], [1.0, 2.0, 3.0])
RULE = AggregationRule(
    bodies=["control"], fold_rules={"control": FoldRule(weights=1.0, scale=0.25, base="zero")}
)


def test_a_body_has_its_own_rule_and_names_and_patterns_are_for_those_of_the_model():
    base, alone = joint(0), fold(joint(0), UPDATES, AggregationRule())
    found = fold(base, UPDATES, RULE)
    for name in (*WIDTHS, "count"):
        assert torch.equal(found[name], alone[name])
    some = fold(base, UPDATES, replace(RULE, include=["^a$"]))
    assert [name for name in base if not torch.equal(some[name], base[name])] == ["a", "control::a"]
    model = MemoryBody.of({"control::a": torch.zeros(2)}).layout
    with pytest.raises(LayoutError, match=r"tensor 'control::a' of the model is named like"):
        joint_layout({"": model, "control": ZeroSource(model).layout})


@pytest.mark.parametrize("name", ["a", "control::a"])
@pytest.mark.parametrize("base", ["own", "zero"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("weights", [None, 2.0, [1.0, 0.5, 4.0]])
def test_a_rule_is_the_formula_of_its_docstring(weights, normalise, base, name):
    old, body = joint(0), name.removesuffix("a").removesuffix("::")
    rule = FoldRule(weights=weights, normalise=normalise, scale=0.5, base=base)
    updates = [replace(update, place=place) for place, update in enumerate(UPDATES)]
    found = fold(old, updates, AggregationRule(bodies=["control"], fold_rules={body: rule}))
    each = dict.fromkeys((1, 2, 3), weights)
    if weights != 2.0:
        each = dict(zip(each, weights or (1.0, 2.0, 3.0), strict=True))
    # Whether the model's params are differences, the updates say themselves.
    start = old[name] if base == "own" or not body else torch.zeros(())
    total = sum(weight * (joint(i)[name] - start) for i, weight in each.items())
    if normalise:
        total = total / sum(each.values())
    torch.testing.assert_close(found[name], old[name] + 0.5 * total)
    assert torch.equal(found["count"], fold(old, UPDATES)["count"])


def test_clipping_and_the_server_optimizer_are_for_the_model_alone():
    base = joint(0)
    found, free = (fold(base, UPDATES, replace(RULE, clip_norm=norm)) for norm in (0.1, None))
    assert torch.equal(found["control::a"], free["control::a"])
    assert not torch.equal(found["a"], free["a"])
    optimizer = ServerOptimizer("fedavgm", 0.5, 0.9, 0.99, 1e-3)
    body = MemoryBody.of({name: base[name] for name in (*WIDTHS, "count")})
    state = MemorySink(state_layout(optimizer.moments, body.layout, AggregationRule()))
    moved = fold(base, UPDATES, RULE, optimization=Optimization(optimizer, None, state))
    assert torch.equal(moved["control::a"], free["control::a"])
    torch.testing.assert_close(moved["a"], base["a"] + 0.5 * (free["a"] - base["a"]))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"base": "mine"}, "a base is own, model, zero"),
        ({"scale": float("nan")}, "a scale is a finite number"),
        ({"weights": [1.0, 0.0]}, "has 0.0; a weight is a finite number above 0"),
        ({"weights": "all"}, "has 'all'; a weight is a finite number above 0"),
        ({"weights": [1.0, 2.0]}, "has 2 weights for 3 updates"),
    ],
)
def test_what_is_no_rule_is_refused(wrong, why):
    with pytest.raises(WorkflowError, match=why):
        FoldRule(**wrong).check_count(3)


RULES = """
import numpy as np

class Mean:
    def fold(self, values, weights):
        return weights @ values / weights.sum()

class Largest:
    def weigh(self, gram, weights):
        return np.diagonal(gram) == np.diagonal(gram).max()

class Raises:
    def __init__(self, error=KeyError, where="fold"):
        self.error = error
        if where == "init":
            raise RuntimeError("no room")

    def fold(self, values, weights):
        raise self.error("oops")

class Returns:
    def __init__(self, value):
        self.value = value

    def fold(self, values, weights):
        return self.value

class Weighs(Returns):
    fold = None

    def weigh(self, gram, weights):
        return self.value
"""


@pytest.fixture(scope="module")
def rule_of(tmp_path_factory):
    """A rule of the classes above."""
    path = tmp_path_factory.mktemp("rules") / "mine.py"
    path.write_text(RULES)
    return lambda name, **args: AggregationRule(f"{path}:{name}", args=args)


BASE = {"w": torch.zeros(3, dtype=torch.float64)}
ROWS = [[1.0, 2.0, 3.0], [1.5, 2.0, 2.0], [-40.0, -50.0, -60.0], [1.25, 1.0, 3.5]]
OF_ROWS = sent(
    [{"w": torch.tensor(row, dtype=torch.float64)} for row in ROWS], [1.0, 2.0, 3.0, 4.0]
)


def aggregate(rule):
    return fold(BASE, OF_ROWS, rule)["w"]


def test_the_documented_example_leaves_out_whoever_points_away(tmp_path):
    (tmp_path / "mine.py").write_text(documented(0))
    method = f"{tmp_path}/mine.py:Agreement"
    rule = OwnRule(method, {})
    assert (rule.folds, rule.weighs) == (True, True)
    found = aggregate(AggregationRule(method))
    np.testing.assert_array_equal(found, np.median(np.delete(ROWS, 2, axis=0), axis=0))
    lenient = aggregate(AggregationRule(method, args={"least": -1.0}))
    np.testing.assert_array_equal(lenient, np.median(ROWS, axis=0))


def test_a_fold_is_given_values_and_weights_and_a_weighing_alone_gives_a_mean(rule_of):
    mean = rule_of("Mean")
    due = np.average(ROWS, axis=0, weights=[1, 2, 3, 4])
    np.testing.assert_allclose(aggregate(mean), due)
    assert aggregate(rule_of("Largest")).tolist() == ROWS[2]
    assert aggregate(replace(mean, clip_norm=1.0)).abs().max() <= 1


def test_integers_are_rounded_half_to_even_and_kept_in_their_range(rule_of):
    def returned(dtype, value):
        base = {"n": torch.zeros(2, dtype=dtype)}
        return fold(base, sent([base]), rule_of("Returns", value=[value, value]))["n"].tolist()

    for dtype, value, due in (
        (torch.int64, 2.5, 2),
        (torch.int64, 1e30, 2**63 - 1),
        (torch.uint8, -3.0, 0),
        (torch.int32, 2.0**31, 2**31 - 1),
    ):
        assert returned(dtype, value) == [due, due]
    with pytest.raises(AggregationError, match=r"'n' at \[0\] would not .*; mend mine.py:Returns"):
        returned(torch.int64, float("nan"))


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Raises", {"error": SystemExit}, r"fold raised SystemExit in line \d+: oops; mend"),
        ("Raises", {}, r"mine.py:Raises.fold raised KeyError in line \d+: 'oops'; mend the rule"),
        ("Raises", {"where": "init"}, r"mine.py:Raises raised RuntimeError in line \d+: no"),
        ("Returns", {"value": 1.0}, r"mine.py:Returns.fold returned an array of shape \(\)"),
        ("Returns", {"value": [1j] * 3}, "it has the type complex128"),
        ("Returns", {"value": "abc"}, r"returned a str, which is no array of real numbers"),
        ("Returns", {"value": [float("nan")] * 3}, "all updates are; mend mine.py:Returns"),
        ("Weighs", {"value": [0, 0, 0, 0]}, r"mine.py:Weighs.weigh returned the weights 0, 0, 0"),
        ("Weighs", {"value": [1e-300] * 4}, "return finite ones of at least 0, not all of them 0"),
        ("Weighs", {"value": [1, 1, float("nan"), 0]}, "returned the weights 1, 1, nan, 0; return"),
        ("Weighs", {"value": [1, 1]}, r"of shape \(2,\); return one of shape \(4,\)"),
    ],
)
def test_what_a_rule_does_wrong_ends_the_fold_with_its_name(rule_of, name, args, message):
    with pytest.raises(AggregationError, match=message):
        aggregate(rule_of(name, **args))
