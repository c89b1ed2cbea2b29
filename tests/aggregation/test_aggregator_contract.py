"""What every aggregator promises: its definition, to the bit, however the body comes and is cut."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import folding
import numpy as np
import pytest
import support
import torch
from folding import fold, fold_into, rule_of, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import COMPLEX, FLOATS, FOLDED, INTEGERS, as_bytes, cuts, every_kind, tensor

from flstream.aggregation.elements import BLOCK
from flstream.aggregation.ranked import left_out
from flstream.aggregation.rules import AggregationRule
from flstream.errors import UpdateRefusedError
from flstream.job.aggregation_section import METHODS
from flstream.model.dtypes import BY_CODE, LARGEST, stored, torch_dtype

Array = np.ndarray


class Aggregator(NamedTuple):
    """What the contract knows of an aggregator. A new one is a line in AGGREGATORS."""

    rule: AggregationRule
    # What it makes of values of shape [sites, elements], in float64 or fractions, and weights.
    definition: Callable[[Array, Array], Array]
    # Whether another order of the sites gives the same bits for any floats.
    ignores_order: bool


def weighted_mean(values: Array, weights: Array) -> Array:
    return (values * weights[:, None]).sum(axis=0) / weights.sum()


def trimmed(left_out: Callable[[int], int]) -> Callable[[Array, Array], Array]:
    """The plain mean of what is left of the sorted values, by how many go at either end."""

    def definition(values: Array, weights: Array) -> Array:
        ends = left_out(len(values))
        left = np.sort(values, axis=0)[ends : len(values) - ends]
        return left.sum(axis=0) / len(left)

    return definition


AGGREGATORS = {
    "mean": Aggregator(AggregationRule(), weighted_mean, ignores_order=False),
    "median": Aggregator(
        AggregationRule(method="median"), trimmed(lambda n: (n - 1) // 2), ignores_order=True
    ),
    "trimmed_mean": Aggregator(rule_of("trimmed_mean", trim=0.25), trimmed(lambda n: n // 4), True),
}

WEIGHTS = (3.0, 1.0, 7.5, 0.25, 2.0, 16.0, 5.0, 1.5, 4.0)

every_aggregator = pytest.mark.parametrize("aggregator", AGGREGATORS.values(), ids=AGGREGATORS)
kinds = pytest.mark.parametrize("params_type", ["FULL", "DIFF"])


def sent(states, params_type="FULL", weights=WEIGHTS, **how):
    return folding.sent(states, weights, params_type, **how)


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
    compared = {name for name, method in METHODS.items() if method.compares}
    held = {each.rule.method for each in AGGREGATORS.values()}
    assert held == set(METHODS) - compared - {"norm_bounded_mean"}


# Eighths below a hundred: every product and sum is exact in float64, so bits can be compared.
@every_aggregator
@kinds
@pytest.mark.parametrize("code", [*FLOATS, *COMPLEX])
@given(count=st.integers(1, 9), elements=st.sampled_from([1, 60]), seed=st.integers(0, 999))
@settings(max_examples=8)
def test_floats_are_the_definition_rounded_once(code, params_type, aggregator, **drawn):
    check_floats(code, params_type, aggregator, **drawn)


@every_aggregator
@kinds
def test_and_so_are_those_of_more_than_a_block(params_type, aggregator):
    check_floats("F32", params_type, aggregator, count=3, elements=BLOCK + 1, seed=0)


def check_floats(code, params_type, aggregator, count, elements, seed):
    base = {"w": tensor(code, (elements,), seed)}
    states = [{"w": tensor(code, (elements,), seed + 1 + i)} for i in range(count)]
    old = parts(base["w"]) if params_type == "DIFF" else 0
    found = fold(base, sent(states, params_type), aggregator.rule)["w"]
    values = [parts(state["w"]) + old for state in states]
    assert as_bytes(found) == as_bytes(due(aggregator, values, base["w"]))


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
    due = fold(old, whole, aggregator.rule)
    for some in differences, [*whole[:2], *differences[2:]]:
        support.assert_same_tensors(fold(old, some, aggregator.rule), due)


@every_aggregator
def test_the_aggregate_of_one_update_is_that_update_and_bools_take_the_majority(aggregator):
    base, state = every_kind(FOLDED), shifted(every_kind(FOLDED), 2)
    support.assert_same_tensors(fold(base, sent([state]), aggregator.rule), state)
    rows = [[True, True, True, False], [True, True, False, False], [True, False, False, False]]
    states = [{"w": torch.tensor(row)} for row in rows]
    for some, due in ((states, [True, True, False, False]), (states[::2], [True, *[False] * 3])):
        found = fold(states[0], sent(some, weights=(1.0,) * 3), aggregator.rule)
        assert found["w"].tolist() == due  # a tie is false


@every_aggregator
@given(order=st.permutations(range(5)), seed=st.integers(0, 999))
@settings(max_examples=15)
def test_the_order_of_the_sites_changes_no_bit_of_what_is_exact(order, seed, aggregator):
    base = every_kind(FOLDED)
    states = [shifted(base, seed) for seed in range(5)]
    if aggregator.ignores_order:  # then neither of any floats
        generator = torch.Generator().manual_seed(seed)
        for code in ("F64", "F32", "BF16"):
            for state in (base, *states):
                numbers = torch.randn(300, generator=generator)
                state[f"{code}.random"] = numbers.to(torch_dtype(code))
    updates = sent(states)
    support.assert_same_tensors(
        fold(base, [updates[place] for place in order], aggregator.rule),
        fold(base, updates, aggregator.rule),
    )


@every_aggregator
@given(seed=st.integers(0, 9999), step=cuts(1400), params_type=st.sampled_from(["FULL", "DIFF"]))
@settings(max_examples=settings.default.max_examples // 2)
def test_any_bytes_give_the_same_bits_however_the_body_is_cut(aggregator, seed, step, params_type):
    rng, states = np.random.default_rng(seed), []
    for _ in range(4):
        states.append(state := {})
        for name, value in every_kind(FOLDED).items():
            most = 2 if value.dtype == torch.bool else 256
            raw = rng.integers(0, most, value.numel() * value.element_size(), np.uint8)
            if len(raw):
                value = torch.frombuffer(raw, dtype=value.dtype).reshape(value.shape)
                if len(states) - 1 != seed % 4 and name[:2] in ("F6", "F3", "F1", "BF", "C6"):
                    # Of two NaNs that are added, the processor keeps either.
                    value[value.isnan()] = 1
            state[name] = value
    base, *others = states
    rule = replace(aggregator.rule, on_nonfinite="allow")
    with np.errstate(all="ignore"):
        whole = fold_into(base, sent(others, params_type), rule)[1]
        assert fold_into(base, sent(others, params_type), rule, step)[1] == whole


NAMES = sorted(every_kind(FOLDED))


@every_aggregator
@given(
    having=st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=1, max_size=5),
    step=cuts(1400),
    params_type=st.sampled_from(["FULL", "DIFF"]),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_each_tensor_is_folded_as_if_only_its_senders_were(having, step, params_type, aggregator):
    base = every_kind(FOLDED)
    states = [
        {name: shifted(base, seed)[name] for name in names} for seed, names in enumerate(having)
    ]
    updates = sent(states, params_type, partial=True)
    found = fold(base, updates, aggregator.rule, step=step)
    for name, value in base.items():
        whole = [
            update(f"site-{i}", {name: state[name]}, WEIGHTS[i], params_type)
            for i, state in enumerate(states)
            if name in state
        ]
        alone = fold({name: value}, whole, aggregator.rule) if whole else {name: value}
        support.assert_same_tensors({name: found[name]}, alone)


@every_aggregator
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("code", [*FLOATS, *COMPLEX])
def test_what_is_not_finite_is_refused_by_site_tensor_and_place(code, value, aggregator):
    if code.startswith("F8") and code != "F8_E5M2" and value == value:
        return  # it has no infinity
    base = {f"{code}.w": tensor(code, (5000,), 9), f"{code}.z": tensor(code, (4, 5), 9)}
    states = [shifted(base, seed) for seed in range(3)]
    name, place = (f"{code}.z", (2, 3)) if value != value else (f"{code}.w", (3001,))
    states[1][name][place] = value
    for params_type in ("FULL", "DIFF"):
        with pytest.raises(UpdateRefusedError) as caught:
            fold(base, sent(states, params_type), aggregator.rule, step=4096)
        assert caught.value.site == "site-1"
        due = f"tensor '{name}' at {list(place)} is {value}; "
        assert str(caught.value).startswith(f"the update of site-1 is not finite: {due}")


@every_aggregator
def test_where_it_is_allowed_a_nan_touches_no_other_element(aggregator):
    base = {"F32.w": tensor("F32", (40_000,), 9)}
    states = [shifted(base, seed) for seed in range(3)]
    clean = fold(base, sent(states), aggregator.rule)
    for state in states:
        state["F32.w"][7] = float("nan")
    found = fold(base, sent(states), replace(aggregator.rule, on_nonfinite="allow"))
    assert found["F32.w"].isnan().nonzero().tolist() == [[7]]
    found["F32.w"][7] = clean["F32.w"][7]
    support.assert_same_tensors(found, clean)


def mean_of(tensors, weights=()):
    updates = folding.sent([{"w": value} for value in tensors], weights)
    return fold({"w": torch.zeros_like(tensors[0])}, updates)["w"]


@pytest.mark.parametrize(
    ("dtype", "values", "due", "weights"),
    [
        # A half is rounded to even.
        (torch.uint8, [0, 255], 128, []),
        (torch.int8, [-128, 127], 0, []),
        # Integers on which all agree, and the ends of 64 bits.
        (torch.int64, [2**50 + 1] * 3, 2**50 + 1, [0.1, 0.7, 1e9]),
        (torch.uint64, [0, 2**64 - 1], 2**64 - 1, [1e-20, 1.0]),
        (torch.int64, [-(2**63), 2**63 - 1], 2**63 - 1, [1e-20, 1.0]),
        # More than half the weight.
        (torch.bool, [True, False, True], True, [5.0, 2.0, 1.0]),
        (torch.bool, [True, False, True], False, [1.0, 2.0, 1.0]),
        # The largest floats of large weights do not overflow.
        (torch.float16, [65504.0] * 4, 65504.0, [1e6] * 4),
        (torch.float32, [LARGEST["F32"]] * 3, LARGEST["F32"], [1e30] * 3),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_ends_of_types(dtype, values, due, weights, order):
    tensors = [torch.tensor([value], dtype=dtype) for value in values][::order]
    assert mean_of(tensors, weights[::order]).tolist() == [due]


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_minus_zero_stays_minus_zero_where_all_agree(code):
    minus = torch.tensor([-0.0, -0.0], dtype=torch.float32).to(torch_dtype(code))
    assert as_bytes(mean_of([minus] * 3, [3.0, 1.0, 7.5])) == as_bytes(minus)
    mixed = mean_of([minus, minus.float().neg().to(minus.dtype)])
    assert not mixed.float().signbit().any()


@pytest.mark.parametrize("code", ["BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_small_floats_are_rounded_once_to_the_nearest(code):
    # torch goes by way of float32, where what is just beside a tie becomes one.
    dtype = torch_dtype(code)
    # All of a type of one byte; 256 neighbours of bfloat16, from 1 to 4.
    bits = torch.arange(256).to(torch.uint8 if dtype.itemsize == 1 else torch.int16)
    every = (bits if dtype.itemsize == 1 else bits + 0x3F80).view(dtype)
    values = np.unique(every.double().numpy())
    values = values[np.isfinite(values)]
    middle = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    given = np.concatenate([values, middle, *beside])
    found = torch.frombuffer(bytearray(stored(code, given)), dtype=dtype).double().numpy()
    nearest = np.abs(given[:, None] - values[None, :]).min(axis=1)
    assert (np.abs(found - given) == nearest).all()


@pytest.mark.parametrize(
    ("fraction", "count", "due"),
    [(0.1, 10, 1), (0.1, 9, 0), (0.3, 10, 3), (0.49, 100, 49), (0.499, 2, 0), (0.0, 5, 0)],
)
def test_a_fraction_is_rounded_down_to_whole_values(fraction, count, due):
    assert left_out(count, fraction) == due
