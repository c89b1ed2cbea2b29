"""Rules that compare whole updates: their definitions, and bits that do not depend on cuts."""

from dataclasses import replace

import numpy as np
import pytest
import robust_reference as reference
import torch
from folding import fold, fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FOLDED, as_bytes, assert_same_tensors, cuts, every_kind, tensor

from flstream.aggregation.gram import GramSum
from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError, UpdateRefusedError

RULES = {
    "krum": AggregationRule("krum"),
    "multi_krum": AggregationRule("multi_krum", byzantine=2, chosen=3),
    "bulyan": AggregationRule("bulyan", byzantine=1),
    "geometric_median": AggregationRule("geometric_median"),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def due(rule, updates):
    """What a rule's definition makes of rows of float64."""
    count = len(updates)
    match rule.method:
        case "krum" | "multi_krum":
            byzantine = (count - 3) // 2 if rule.byzantine is None else rule.byzantine
            chosen = 1 if rule.method == "krum" else rule.chosen or count - byzantine
            return reference.multi_krum(updates, byzantine, chosen)
        case "bulyan":
            byzantine = (count - 3) // 4 if rule.byzantine is None else rule.byzantine
            return reference.bulyan(updates, byzantine)
    return reference.geometric_median(updates)


def rows(count, seed, numbers=40, far=0):
    """Updates around a common one, the first of which are far off."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(numbers) + 0.3 * rng.standard_normal((count, numbers))
    found[:far] = -5 * found[:far]
    return found


def sent(values, params_type="FULL", base=None, **how):
    old = 0 if base is None else base["w"]
    return [
        update(f"site-{i}", {"w": old + torch.from_numpy(row)}, 1.0 + i, params_type, **how)
        for i, row in enumerate(values)
    ]


@pytest.mark.parametrize(
    "rule",
    [
        *RULES.values(),
        AggregationRule("multi_krum"),
        AggregationRule("krum", byzantine=0),
        AggregationRule("bulyan"),
        AggregationRule("bulyan", byzantine=0),
    ],
    ids=lambda rule: f"{rule.method}-{rule.byzantine}",
)
@given(count=st.integers(7, 15), seed=st.integers(0, 9999), full=st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_rule_comes_to_its_definition_on_whole_models(rule, count, seed, full):
    values = rows(count, seed, far=seed % 3)
    base = {"w": torch.randn(40, dtype=torch.float64)}
    updates = sent(values, "FULL", base) if full else sent(values, "DIFF")
    found = fold(base, updates, rule)["w"] - base["w"]
    np.testing.assert_allclose(found.numpy(), due(rule, values), rtol=1e-4, atol=1e-6)


@given(count=st.integers(3, 9), seed=st.integers(0, 9999))
@settings(max_examples=15, deadline=None)
def test_the_geometric_median_has_the_least_sum_of_distances(count, seed):
    values = rows(count, seed, numbers=6, far=(count - 1) // 2)
    found = fold(
        {"w": torch.zeros(6, dtype=torch.float64)}, sent(values), RULES["geometric_median"]
    )

    def sum_of_distances(point):
        return np.linalg.norm(values - point, axis=1).sum()

    best = sum_of_distances(reference.geometric_median(values))
    assert sum_of_distances(found["w"].numpy()) <= best * (1 + 1e-6)


def test_krum_is_one_of_the_updates_to_the_bit():
    base = every_kind(FOLDED)
    states = [shifted(base, seed) for seed in range(5)]
    found = fold(base, [update(f"{i}", state) for i, state in enumerate(states)], RULES["krum"])
    assert any(
        all(as_bytes(found[name]) == as_bytes(state[name]) for name in base) for state in states
    )


@every_rule
@pytest.mark.parametrize("scale", [1e3, 1e30, 1e100])
def test_updates_that_are_far_off_together_do_not_move_the_rest(rule, scale):
    rng = np.random.default_rng(1)
    honest = 1 + 0.01 * rng.standard_normal((8, 30))
    liars = -scale * np.ones((2 if rule.byzantine != 1 else 1, 30))
    found = fold({"w": torch.zeros(30, dtype=torch.float64)}, sent([*liars, *honest]), rule)["w"]
    assert ((found > 0.9) & (found < 1.1)).all()


@every_rule
def test_weights_that_sites_choose_do_not_count(rule):
    values = rows(9, 4)
    base = {"w": torch.zeros(40, dtype=torch.float64)}
    loud = [replace(each, weight=1e9 if i == 3 else 1.0) for i, each in enumerate(sent(values))]
    assert fold_into(base, loud, rule)[1] == fold_into(base, sent(values), rule)[1]


@every_rule
@given(step=cuts(1400), seed=st.integers(0, 99), clip_norm=st.sampled_from([None, 20.0, "median"]))
@settings(max_examples=12, deadline=None)
def test_every_kind_of_tensor_has_the_same_bits_however_the_body_is_cut(
    rule, step, seed, clip_norm
):
    base = every_kind(FOLDED)
    updates = [update(f"{i}", shifted(base, seed + i), 1.0 + i) for i in range(7)]
    rule = replace(rule, clip_norm=clip_norm)
    assert_same_tensors(fold(base, updates, rule, step=step), fold(base, updates, rule))


@every_rule
@pytest.mark.parametrize("step", [4096, 65_536 + 16, 2 << 20])
def test_so_does_a_model_of_many_tiles(rule, step):
    base = {"F32.w": tensor("F32", (70_001,)), "BF16.w": tensor("BF16", (30_011,))}
    generator = torch.Generator().manual_seed(3)
    states = [
        {n: torch.randn(v.shape, generator=generator).to(v.dtype) for n, v in base.items()}
        for _ in range(7)
    ]
    updates = [update(f"{i}", state) for i, state in enumerate(states)]
    assert fold_into(base, updates, rule, step)[1] == fold_into(base, updates, rule)[1]


@given(
    count=st.integers(1, 40),
    numbers=st.integers(0, 40_000),
    cuts_at=st.lists(st.integers(0, 40_000), max_size=8),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_inner_products_have_the_same_bits_however_they_were_cut(count, numbers, cuts_at, seed):
    numbers //= count
    values = np.random.default_rng(seed).standard_normal((count, numbers))
    whole, pieces = GramSum(count), GramSum(count)
    whole.add(values)
    for piece in np.split(values, sorted(min(at, numbers) for at in cuts_at), axis=1):
        pieces.add(piece)
    found = whole.matrix()
    assert found.tobytes() == pieces.matrix().tobytes()
    np.testing.assert_allclose(found, values @ values.T, rtol=1e-11, atol=1e-9)


@every_rule
def test_tensors_that_are_not_aggregated_and_integers_do_not_count(rule):
    values = rows(9, 5)
    base = {"w": torch.zeros(40, dtype=torch.float64)}
    plain = fold(base, sent(values), rule)["w"]
    more = {**base, "x": torch.zeros(1), "n": torch.tensor(0)}
    updates = [
        update(
            f"site-{i}", {"w": torch.from_numpy(row), "x": torch.full((1,), 1e9 * i), "n": base_n}
        )
        for i, row in enumerate(values)
        for base_n in [torch.tensor(10**6 * i)]
    ]
    found = fold(more, updates, replace(rule, exclude=["x"]))
    assert as_bytes(found["w"]) == as_bytes(plain)
    assert found["x"].item() == 0


@every_rule
def test_a_tensor_that_an_update_lacks_is_one_that_it_does_not_change(rule):
    """The chosen ones are those that would be, had it sent the model's own values."""
    base = {"a": torch.randn(40, dtype=torch.float64), "b": torch.randn(5, dtype=torch.float64)}
    values = rows(9, 6)
    states = [{"a": base["a"] + torch.from_numpy(row), "b": base["b"]} for row in values]
    part = [{"a": each["a"]} if i % 2 else each for i, each in enumerate(states)]
    whole = fold(base, [update(f"{i}", each) for i, each in enumerate(states)], rule)
    found = fold(base, [update(f"{i}", each, partial=True) for i, each in enumerate(part)], rule)
    assert as_bytes(found["a"]) == as_bytes(whole["a"])
    torch.testing.assert_close(found["b"], base["b"])


@every_rule
def test_identical_updates_give_that_update(rule):
    state = {"w": torch.randn(40, dtype=torch.float64)}
    updates = [update(f"{i}", state) for i in range(9)]
    found = fold({"w": torch.zeros(40, dtype=torch.float64)}, updates, rule)["w"]
    torch.testing.assert_close(found, state["w"], rtol=1e-15, atol=0)


@every_rule
@pytest.mark.parametrize("policy", ["reject", "allow"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_an_update_without_a_finite_norm_is_refused_by_name(rule, policy, bad):
    values = rows(9, 7)
    values[4, 11] = bad
    base = {"w": torch.zeros(40, dtype=torch.float64)}
    with pytest.raises(UpdateRefusedError, match=r"^the update of site-4 ") as caught:
        fold(base, sent(values), replace(rule, on_nonfinite=policy))
    left = [each for each in sent(values) if each.site != caught.value.site]
    assert torch.isfinite(fold(base, left, replace(rule, on_nonfinite=policy))["w"]).all()


@pytest.mark.parametrize(
    ("rule", "count", "sentence"),
    [
        (AggregationRule("krum", byzantine=2), 6, "krum needs 7 or more updates where 2 of them"),
        (AggregationRule("multi_krum"), 2, "multi_krum needs 3 or more updates where 0 of them"),
        (AggregationRule("bulyan", byzantine=2), 10, "bulyan needs 11 or more updates where 2 "),
        (AggregationRule("multi_krum", chosen=8), 7, "multi_krum is to choose 8 updates, and "),
    ],
)
def test_too_few_updates_fail_the_fold_with_what_is_needed(rule, count, sentence):
    with pytest.raises(AggregationError, match=rf"{sentence}.*there are {count}; lower "):
        fold({"w": torch.zeros(40, dtype=torch.float64)}, sent(rows(count, 1)), rule)


@pytest.mark.parametrize("code", ["I64", "U8", "BOOL"])
def test_bulyan_ranks_integers_as_they_are(code):
    name = {"I64": torch.int64, "U8": torch.uint8, "BOOL": torch.bool}[code]
    numbers = {"I64": [2**62 + 1] * 6 + [0], "U8": [3] * 6 + [255], "BOOL": [True] * 6 + [False]}
    updates = [
        update(f"{i}", {"n": torch.tensor([value], dtype=name), "w": torch.zeros(2)})
        for i, value in enumerate(numbers[code])
    ]
    base = {"n": torch.zeros(1, dtype=name), "w": torch.zeros(2)}
    assert fold(base, updates, RULES["bulyan"])["n"].item() == numbers[code][0]


def test_clipping_to_the_median_norm_bounds_by_the_cohort_itself():
    base = {"w": torch.zeros(1, dtype=torch.float64)}
    updates = sent(np.array([[1.0], [3.0], [1000.0]]))
    rule = AggregationRule(clip_norm="median")
    found = fold(base, [replace(each, weight=1.0) for each in updates], rule)
    assert found["w"].item() == pytest.approx(7 / 3)
