"""Rules that compare whole updates: their definitions, in plain NumPy, on whole models."""

from dataclasses import replace

import folding
import numpy as np
import pytest
import torch
from folding import fold, rule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support import as_bytes, assert_same_tensors

from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError, UpdateRefusedError
from flstream.job.aggregation_section import METHODS

RULES = {
    "krum": rule_of("krum"),
    "multi_krum": rule_of("multi_krum", byzantine=2, selected=3),
    "bulyan": rule_of("bulyan", byzantine=1),
    "geometric_median": rule_of("geometric_median"),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def test_every_method_that_compares_updates_is_here():
    assert set(RULES) == {name for name, method in METHODS.items() if method.compares}


def krum_order(updates, byzantine):
    """The places of the rows, the one with the lowest score first."""
    squares = np.linalg.norm(updates[:, None] - updates[None], axis=2) ** 2
    near = len(updates) - byzantine - 2
    scores = [
        np.sort(np.delete(row, place))[: max(near, 0)].sum() for place, row in enumerate(squares)
    ]
    return np.argsort(scores, kind="stable")


def bulyan(updates, byzantine):
    """Of n - 2 f rows by repeated Krum, the mean of the n - 4 f values nearest to the median."""
    left, selected = list(range(len(updates))), []
    while len(selected) < len(updates) - 2 * byzantine:
        selected.append(left.pop(krum_order(updates[left], byzantine)[0]))
    values = updates[selected]
    near = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")
    kept = len(values) - 2 * byzantine
    return np.take_along_axis(values, near[:kept], axis=0).mean(axis=0)


def geometric_median(updates):
    """The point with the least sum of distances, by plain Weiszfeld iterations until it stays."""
    point, moved = np.median(updates, axis=0), np.inf
    while moved > 1e-12:
        weights = 1 / np.maximum(np.linalg.norm(updates - point, axis=1), 1e-13)
        before, point = point, weights @ updates / weights.sum()
        moved = np.abs(point - before).max()
    return point


def due(rule, updates):
    """What a rule's definition makes of rows of float64."""
    count, byzantine = len(updates), rule.args.get("byzantine")
    match rule.method:
        case "krum" | "multi_krum":
            byzantine = (count - 3) // 2 if byzantine is None else byzantine
            selected = 1 if rule.method == "krum" else rule.args["selected"] or count - byzantine
            return updates[np.sort(krum_order(updates, byzantine)[:selected])].mean(axis=0)
        case "bulyan":
            return bulyan(updates, (count - 3) // 4 if byzantine is None else byzantine)
    return geometric_median(updates)


def rows(count, seed, far=0):
    """Updates around a common one, the first of which are far off."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(40) + 0.3 * rng.standard_normal((count, 40))
    found[:far] = -5 * found[:far]
    return found


ZEROS = {"w": torch.zeros(40, dtype=torch.float64)}


def sent(values, params_type="FULL", base=ZEROS):
    states = [{"w": base["w"] + torch.from_numpy(row)} for row in values]
    return folding.sent(states, np.arange(1.0, 1 + len(values)).tolist(), params_type)


@pytest.mark.parametrize(
    "rule",
    [
        *RULES.values(),
        rule_of("multi_krum"),
        rule_of("krum", byzantine=0),
        rule_of("bulyan"),
        rule_of("bulyan", byzantine=0),
    ],
    ids=lambda rule: f"{rule.method}-{rule.args.get('byzantine')}",
)
@given(count=st.integers(7, 15), seed=st.integers(0, 9999), full=st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_rule_comes_to_its_definition_on_whole_models(rule, count, seed, full):
    values = rows(count, seed, far=seed % 3)
    base = {"w": torch.randn(40, dtype=torch.float64)}
    updates = sent(values, base=base) if full else sent(values, "DIFF")
    found = fold(base, updates, rule)["w"] - base["w"]
    np.testing.assert_allclose(found.numpy(), due(rule, values), rtol=1e-4, atol=1e-6)
    agreed = fold(base, sent(values[:1].repeat(9, axis=0)), rule)["w"].numpy()
    np.testing.assert_allclose(agreed, values[0], rtol=1e-15)


@every_rule
def test_integers_weights_and_tensors_that_are_not_aggregated_do_not_count(rule):
    values = rows(9, 5)
    more = {**ZEROS, "x": torch.zeros(1), "n": torch.tensor(0)}
    states = [
        {"w": torch.from_numpy(row), "x": torch.tensor([1e9 * i]), "n": torch.tensor(9**i)}
        for i, row in enumerate(values)
    ]
    updates = folding.sent(states, [1.0, 1.0, 1.0, 1e9, *[1.0] * 5])
    found = fold(more, updates, replace(rule, exclude=["x"]))
    assert as_bytes(found["w"]) == as_bytes(fold(ZEROS, sent(values), rule)["w"])
    assert found["x"].item() == 0


@every_rule
def test_a_tensor_that_an_update_lacks_is_one_that_it_does_not_change(rule):
    """The chosen ones are those that would be, had it sent the model's own values."""
    base = {"a": torch.randn(40, dtype=torch.float64), "b": torch.randn(5, dtype=torch.float64)}
    values = rows(9, 6)
    states = [{"a": base["a"] + torch.from_numpy(row), "b": base["b"]} for row in values]
    part = [{"a": each["a"]} if i % 2 else each for i, each in enumerate(states)]
    whole = fold(base, folding.sent(states), rule)
    found = fold(base, folding.sent(part, partial=True), rule)
    assert as_bytes(found["a"]) == as_bytes(whole["a"])
    torch.testing.assert_close(found["b"], base["b"])


@pytest.mark.parametrize("rule", [*RULES.values(), AggregationRule(clip_norm=1.0)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_an_update_without_a_finite_norm_is_refused_by_name(rule, bad):
    values = rows(9, 7)
    values[4, 11] = bad
    for policy in ("reject", "allow"):
        strict = replace(rule, on_nonfinite=policy)
        with pytest.raises(UpdateRefusedError, match=r"^the update of site-4 ") as caught:
            fold(ZEROS, sent(values), strict)
        left = [each for each in sent(values) if each.site != caught.value.site]
        assert torch.isfinite(fold(ZEROS, left, strict)["w"]).all()


@pytest.mark.parametrize(
    ("rule", "count", "sentence"),
    [
        (rule_of("krum", byzantine=2), 6, "krum needs 7 or more updates where 2 of them"),
        (rule_of("multi_krum"), 2, "multi_krum needs 3 or more updates where 0 of them"),
        (rule_of("bulyan", byzantine=2), 10, "bulyan needs 11 or more updates where 2 "),
        (rule_of("multi_krum", selected=8), 7, "multi_krum is to choose 8 updates, and "),
    ],
)
def test_too_few_updates_fail_the_fold_with_what_is_needed(rule, count, sentence):
    with pytest.raises(AggregationError, match=rf"{sentence}.*there are {count}; lower "):
        fold(ZEROS, sent(rows(count, 1)), rule)


def test_bulyan_ranks_integers_too():
    states = [
        {
            "I64": torch.tensor([2**52 + 1 if i < 6 else 0]),
            "U8": torch.tensor([3 if i < 6 else 255], dtype=torch.uint8),
            "BOOL": torch.tensor([i < 6]),
            "w": torch.zeros(2),
        }
        for i in range(7)
    ]
    base = {name: torch.zeros_like(value) for name, value in states[0].items()}
    assert_same_tensors(fold(base, folding.sent(states), RULES["bulyan"]), states[0])
