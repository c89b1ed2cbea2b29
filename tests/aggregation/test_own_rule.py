"""A user's own rule: the documented example, what it is given, and what it may not return."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from folding import fold, fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FOLDED, as_bytes, assert_same_tensors, cuts, every_kind

from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError
from flstream.job.aggregation_method import find_own_rule

PAGE = (Path(__file__).parents[2] / "docs" / "robust.md").read_text()
RULES = """
import numpy as np


class Median:
    def fold(self, values, weights):
        return np.median(values, axis=0)


class Mean:
    def fold(self, values, weights):
        return weights @ values / weights.sum()


class Largest:
    def weigh(self, gram, weights):
        return np.diagonal(gram) == np.diagonal(gram).max()


class Raises:
    def __init__(self, where="fold"):
        if where == "init":
            raise RuntimeError("no room")

    def fold(self, values, weights):
        raise KeyError("oops")


class Exits:
    def fold(self, values, weights):
        raise SystemExit(3)


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


def sent(rows, **how):
    return [
        update(f"site-{i}", {"w": torch.tensor(row, dtype=torch.float64)}, 1.0 + i, **how)
        for i, row in enumerate(rows)
    ]


BASE = {"w": torch.zeros(3, dtype=torch.float64)}
ROWS = [[1.0, 2.0, 3.0], [1.5, 2.0, 2.0], [-40.0, -50.0, -60.0], [1.25, 1.0, 3.5]]


def test_the_documented_example_leaves_out_whoever_points_away(tmp_path):
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) <= 20
    (tmp_path / "mine.py").write_text(block)
    method = f"{tmp_path}/mine.py:Agreement"
    assert find_own_rule(method)[1:] == (True, True)
    found = fold(BASE, sent(ROWS), AggregationRule(method))["w"]
    np.testing.assert_array_equal(found, np.median(np.delete(ROWS, 2, axis=0), axis=0))
    lenient = fold(BASE, sent(ROWS), AggregationRule(method, args={"least": -1.0}))["w"]
    np.testing.assert_array_equal(lenient, np.median(ROWS, axis=0))


def test_a_fold_is_given_values_and_weights_and_a_weighing_alone_gives_a_mean(rule_of):
    found = fold(BASE, sent(ROWS), rule_of("Mean"))["w"]
    np.testing.assert_allclose(found, np.average(ROWS, axis=0, weights=[1, 2, 3, 4]))
    assert fold(BASE, sent(ROWS), rule_of("Largest"))["w"].tolist() == ROWS[2]
    clipped = fold(BASE, sent(ROWS), AggregationRule(rule_of("Mean").method, clip_norm=1.0))["w"]
    assert clipped.abs().max() <= 1


@given(step=cuts(1400), seed=st.integers(0, 99), params_type=st.sampled_from(["FULL", "DIFF"]))
@settings(max_examples=15, deadline=None)
def test_a_rule_by_coordinates_has_the_same_bits_however_the_body_is_cut(
    rule_of, step, seed, params_type
):
    base = every_kind(FOLDED)
    updates = [update(f"{i}", shifted(base, seed + i), 1.0, params_type) for i in range(4)]
    rule = rule_of("Median")
    found = fold(base, updates, rule, step=step)
    assert_same_tensors(found, fold(base, updates, rule))
    floats = [name for name in base if base[name].is_floating_point()]
    built_in = fold(base, updates, AggregationRule("median"))
    assert all(as_bytes(found[name]) == as_bytes(built_in[name]) for name in floats)


@pytest.mark.parametrize(
    ("code", "value", "due"),
    [
        (torch.int64, 2.5, 2),
        (torch.int64, 1e30, 2**63 - 1),
        (torch.uint8, -3.0, 0),
        (torch.int32, 2.0**31, 2**31 - 1),
    ],
)
def test_integers_are_rounded_half_to_even_and_kept_in_their_range(rule_of, code, value, due):
    base = {"n": torch.zeros(2, dtype=code)}
    rule = rule_of("Returns", value=[value, value])
    assert fold(base, [update("site-1", base)], rule)["n"].tolist() == [due, due]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Raises", {}, r"mine.py:Raises.fold raised KeyError in line 26: 'oops'; mend the rule"),
        ("Raises", {"where": "init"}, r"mine.py:Raises raised RuntimeError in line 23: no"),
        ("Exits", {}, r"mine.py:Exits.fold raised SystemExit in line 31: 3; mend the rule"),
        ("Returns", {"value": 1.0}, r"mine.py:Returns.fold returned an array of shape \(\)"),
        ("Returns", {"value": [[1.0] * 3]}, r"of shape \(1, 3\); return one of shape \(3,\)"),
        ("Returns", {"value": [1j] * 3}, "it gave complex numbers, and floats are due"),
        ("Returns", {"value": "abc"}, r"returned a str, which is no array of 3 numbers"),
        ("Returns", {"value": [float("nan")] * 3}, "all updates are; mend mine.py:Returns"),
        ("Weighs", {"value": [0, 0, 0, 0]}, r"mine.py:Weighs.weigh returned the weights 0, 0, 0"),
        ("Weighs", {"value": [1, 1, -1, 0]}, "return finite ones of at least 0, not all"),
        ("Weighs", {"value": [1e-300] * 4}, "return finite ones of at least 0, not all of them 0"),
        ("Weighs", {"value": [1, 1, float("nan"), 0]}, "returned the weights 1, 1, nan, 0; return"),
        ("Weighs", {"value": [1, 1]}, r"of shape \(2,\); return one of shape \(4,\)"),
    ],
)
def test_what_a_rule_does_wrong_ends_the_fold_with_its_name(rule_of, name, args, message):
    with pytest.raises(AggregationError, match=message):
        fold_into(BASE, sent(ROWS), rule_of(name, **args))


def test_integers_of_a_rule_have_to_be_finite(rule_of):
    base = {"n": torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(AggregationError, match="of I64 integers are not finite; mend the rule"):
        fold(base, [update("site-1", base)], rule_of("Returns", value=[float("nan")]))
