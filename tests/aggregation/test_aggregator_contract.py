"""What every aggregator promises: its definition, to the bit, however the body comes and is cut."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from aggregators import AGGREGATORS
from folding import fold, fold_bytes, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    COMPLEX,
    FLOATS,
    FOLDED,
    INTEGERS,
    as_bytes,
    assert_same_tensors,
    cuts,
    entries,
    every_kind,
    tensor,
)

from flstream.aggregation.rules import AggregationRule
from flstream.errors import UpdateRefusedError
from flstream.job.aggregation_method import METHODS
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.layout import Layout

WEIGHTS = (3.0, 1.0, 7.5, 0.25, 2.0, 16.0, 5.0, 1.5, 4.0)

every_aggregator = pytest.mark.parametrize("aggregator", AGGREGATORS.values(), ids=AGGREGATORS)
kinds = pytest.mark.parametrize("params_type", ["FULL", "DIFF"])


def sent(states, params_type="FULL", weights=WEIGHTS, **how):
    """An update of each site."""
    return [
        update(f"site-{i}", state, weights[i], params_type, **how) for i, state in enumerate(states)
    ]


def parts(value):
    """The numbers of a tensor in float64: a complex one has two an element."""
    flat = value.flatten()
    return (torch.view_as_real(flat) if flat.is_complex() else flat).double().numpy().reshape(-1)


def due(aggregator, values, like):
    """What the definition makes of values of all sites, rounded once."""
    found = torch.from_numpy(
        aggregator.definition(np.stack(values), np.array(WEIGHTS[: len(values)]))
    )
    if like.is_complex():
        return torch.view_as_complex(found.reshape(-1, 2)).to(like.dtype)
    return found > 0.5 if like.dtype == torch.bool else found.to(like.dtype)


def test_every_method_of_the_job_file_is_held_to_this_or_compares_updates():
    # The bounded mean is the mean with a limit; and those that compare are in test_robust_rules.py.
    compared = {name for name in METHODS if AggregationRule(name).compares}
    held = {each.rule.method for each in AGGREGATORS.values()}
    assert held == set(METHODS) - compared - {"norm_bounded_mean"}


# Eighths below a hundred: every product and sum is exact in float64, so bits can be compared.
@every_aggregator
@kinds
@pytest.mark.parametrize("code", [*FLOATS, *COMPLEX])
@given(count=st.integers(1, 9), elements=st.sampled_from([1, 7, 60]), seed=st.integers(0, 999))
@settings(max_examples=8)
def test_floats_are_the_definition_in_float64_rounded_once(
    code, params_type, aggregator, count, elements, seed
):
    base = {"w": tensor(code, (elements,), seed)}
    states = [{"w": tensor(code, (elements,), seed + 1 + i)} for i in range(count)]
    old = parts(base["w"]) if params_type == "DIFF" else 0
    found = fold(base, sent(states, params_type), aggregator.rule)["w"]
    values = [parts(state["w"]) + old for state in states]
    assert as_bytes(found) == as_bytes(due(aggregator, values, base["w"]))


@every_aggregator
@pytest.mark.parametrize("code", FLOATS)
def test_a_long_range_is_the_definition_in_all_its_blocks(code, aggregator):
    base = {"w": torch.zeros(50_001).to(torch_dtype(code))}
    states = [{"w": tensor(code, (50_001,), seed)} for seed in range(4)]
    found = fold(base, sent(states), aggregator.rule)["w"]
    values = [parts(state["w"]) for state in states]
    assert as_bytes(found) == as_bytes(due(aggregator, values, base["w"]))
    assert as_bytes(fold(base, sent(states), aggregator.rule, step=4096)["w"]) == as_bytes(found)


@every_aggregator
@pytest.mark.parametrize("code", [c for c in INTEGERS if BY_CODE[c].itemsize < 8])
@given(st.data())
@settings(max_examples=20)
def test_integers_are_the_exact_definition_rounded_half_to_even(code, aggregator, data):
    limits = np.iinfo(BY_CODE[code].numpy_name)
    sites, dtype = data.draw(st.integers(1, 5)), torch_dtype(code)
    row = st.lists(st.integers(limits.min, limits.max), min_size=5, max_size=5)
    rows = [data.draw(row) for _ in range(sites)]
    weights = data.draw(st.lists(st.integers(1, 64).map(float), min_size=sites, max_size=sites))
    states = [{"w": torch.tensor(each, dtype=dtype)} for each in rows]
    found = fold({"w": torch.zeros(5, dtype=dtype)}, sent(states, weights=weights), aggregator.rule)
    values = np.array([[Fraction(number) for number in each] for each in rows])
    exact = aggregator.definition(values, np.array([Fraction(weight) for weight in weights]))
    assert found["w"].tolist() == [round(number) for number in exact]


@every_aggregator
@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, -(2**63), -(2**53) - 1, 0])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.1, 0.7, 1e9)])
def test_a_large_integer_that_all_agree_on_stays_as_it_is(value, weights, aggregator):
    agreed = {"w": torch.tensor([value] * 3)}
    base = {"w": torch.zeros(3, dtype=torch.int64)}
    assert_same_tensors(fold(base, sent([agreed] * 3, weights=weights), aggregator.rule), agreed)


@every_aggregator
@pytest.mark.parametrize("code", [*INTEGERS, "BOOL"])
def test_a_difference_of_integers_gives_what_the_whole_update_gives(code, aggregator):
    name = BY_CODE[code].numpy_name
    base = tensor(code, (500,), 9).numpy()
    updates = [tensor(code, (500,), seed).numpy() for seed in range(4)]
    deltas = [u ^ base if code == "BOOL" else (u - base).astype(name) for u in updates]
    whole, differences = (
        sent([{"w": torch.from_numpy(each)} for each in arrays], kind)
        for arrays, kind in ((updates, "FULL"), (deltas, "DIFF"))
    )
    old = {"w": torch.from_numpy(base)}
    assert_same_tensors(fold(old, differences, aggregator.rule), fold(old, whole, aggregator.rule))


@every_aggregator
def test_bools_of_equal_weight_take_the_majority_and_a_tie_is_false(aggregator):
    rows = [[True, True, True, False], [True, True, False, False], [True, False, False, False]]
    states = [{"w": torch.tensor(row)} for row in rows]
    base = {"w": torch.zeros(4, dtype=torch.bool)}
    three, two = (sent(each, weights=(1.0,) * 3) for each in (states, states[::2]))
    assert fold(base, three, aggregator.rule)["w"].tolist() == [True, True, False, False]
    assert fold(base, two, aggregator.rule)["w"].tolist() == [True, False, False, False]


@every_aggregator
@pytest.mark.parametrize("code", FOLDED)
def test_the_aggregate_of_one_update_is_that_update(code, aggregator):
    base, state = {"w": tensor(code, (100,), 1)}, {"w": tensor(code, (100,), 2)}
    assert_same_tensors(fold(base, sent([state]), aggregator.rule), state)


@every_aggregator
@given(order=st.permutations(range(5)))
@settings(max_examples=15)
def test_the_order_of_the_sites_changes_no_bit_of_what_is_exact(order, aggregator):
    base = every_kind(FOLDED)
    updates = sent([shifted(base, seed) for seed in range(5)])
    assert_same_tensors(
        fold(base, [updates[place] for place in order], aggregator.rule),
        fold(base, updates, aggregator.rule),
    )


@pytest.mark.parametrize(
    "aggregator",
    [each for each in AGGREGATORS.values() if each.ignores_order],
    ids=[name for name, each in AGGREGATORS.items() if each.ignores_order],
)
@given(order=st.permutations(range(6)), seed=st.integers(0, 999))
@settings(max_examples=15)
def test_nor_of_any_floats_where_that_is_promised(order, seed, aggregator):
    generator = torch.Generator().manual_seed(seed)
    base = {code: torch.zeros(300, dtype=torch_dtype(code)) for code in ("F64", "F32", "BF16")}
    states = [
        {name: torch.randn(300, generator=generator).to(old.dtype) for name, old in base.items()}
        for _ in range(6)
    ]
    updates = sent(states)
    assert_same_tensors(
        fold(base, [updates[place] for place in order], aggregator.rule),
        fold(base, updates, aggregator.rule),
    )


@every_aggregator
@given(entries(FOLDED).filter(len), st.data())
@settings(max_examples=40)
def test_any_bytes_give_the_same_bits_however_the_body_is_cut(aggregator, given_entries, data):
    layout = Layout.of(given_entries)
    body = st.binary(min_size=layout.nbytes, max_size=layout.nbytes)
    booleans = [s for s in layout.tensors if s.dtype == "BOOL"]
    updates = [bytearray(data.draw(body)) for _ in range(3)]
    for each in updates:
        for spec in booleans:
            each[spec.start : spec.stop] = bytes(b & 1 for b in each[spec.start : spec.stop])
    base = data.draw(st.sampled_from([None, updates[0]]))
    rule, step = replace(aggregator.rule, on_nonfinite="allow"), data.draw(cuts(layout.nbytes))
    with np.errstate(all="ignore"):
        whole = fold_bytes(layout, updates, WEIGHTS[:3], rule, base=base)
        assert fold_bytes(layout, updates, WEIGHTS[:3], rule, step, base) == whole


@every_aggregator
@given(
    step=cuts(1400),
    seed=st.integers(0, 99),
    clip_norm=st.sampled_from([None, 20.0]),
    params_type=st.sampled_from(["FULL", "DIFF"]),
)
@settings(max_examples=20)
def test_so_do_updates_that_are_clipped(step, seed, clip_norm, params_type, aggregator):
    base = every_kind(FOLDED)
    updates = sent([shifted(base, seed + i) for i in range(4)], params_type)
    rule = replace(aggregator.rule, clip_norm=clip_norm)
    assert_same_tensors(fold(base, updates, rule, step=step), fold(base, updates, rule))


NAMES = sorted(every_kind(FOLDED))


@every_aggregator
@given(
    having=st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=1, max_size=5),
    frame=st.sampled_from([16, 48, 256, 4096]),
    frames=st.integers(1, 90),
    params_type=st.sampled_from(["FULL", "DIFF"]),
)
@settings(max_examples=25)
def test_each_tensor_is_folded_as_if_only_those_existed_who_send_it(
    having, frame, frames, params_type, aggregator
):
    base = every_kind(FOLDED)
    states = [
        {name: shifted(base, seed)[name] for name in names} for seed, names in enumerate(having)
    ]
    updates = sent(states, params_type, partial=True, frame=frame)
    found = fold(base, updates, aggregator.rule, step=frames * frame, frame=frame)
    for name, value in base.items():
        whole = [
            update(f"site-{i}", {name: state[name]}, WEIGHTS[i], params_type)
            for i, state in enumerate(states)
            if name in state
        ]
        alone = fold({name: value}, whole, aggregator.rule) if whole else {name: value}
        assert_same_tensors({name: found[name]}, alone)


def finite_states(code="F32", elements=40_000):
    base = {f"{code}.w": tensor(code, (elements,), 9), f"{code}.z": tensor(code, (4, 5), 9)}
    return base, [shifted(base, seed) for seed in range(3)]


@every_aggregator
@kinds
@pytest.mark.parametrize("code", [*FLOATS, *COMPLEX])
def test_an_update_with_a_nan_is_refused_by_site_tensor_and_place(code, params_type, aggregator):
    base, states = finite_states(code)
    states[1][f"{code}.z"][2, 3] = float("nan")
    with pytest.raises(UpdateRefusedError) as caught:
        fold(base, sent(states, params_type), aggregator.rule, step=4096)
    assert caught.value.site == "site-1"
    assert str(caught.value).startswith(
        f"the update of site-1 is not finite: tensor '{code}.z' at [2, 3] is nan; "
    )


@every_aggregator
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16", "F8_E5M2", *COMPLEX])
def test_so_is_one_with_an_infinity(code, value, aggregator):
    base, states = finite_states(code)
    states[2][f"{code}.w"][30_001] = value
    with pytest.raises(UpdateRefusedError, match=r"of site-2 .*\.w' at \[30001\] is -?inf; "):
        fold(base, sent(states), aggregator.rule)


@every_aggregator
def test_without_the_refused_site_the_model_is_that_of_the_others(aggregator):
    base, states = finite_states()
    whole = sent(states)
    others = fold(base, [whole[0], whole[2]], aggregator.rule)
    states[1] = {**states[1], "F32.w": torch.full((40_000,), float("nan"))}
    updates = sent(states)
    with pytest.raises(UpdateRefusedError) as caught:
        fold(base, updates, aggregator.rule)
    left = [each for each in updates if each.site != caught.value.site]
    assert_same_tensors(fold(base, left, aggregator.rule), others)


@every_aggregator
def test_where_it_is_allowed_a_nan_touches_no_other_element(aggregator):
    base, states = finite_states()
    clean = fold(base, sent(states), aggregator.rule)
    for state in states:
        state["F32.w"] = state["F32.w"].clone()
        state["F32.w"][7] = float("nan")
    found = fold(base, sent(states), replace(aggregator.rule, on_nonfinite="allow"))
    assert found["F32.w"].isnan().nonzero().tolist() == [[7]]
    found["F32.w"][7] = clean["F32.w"][7]
    assert_same_tensors(found, clean)
