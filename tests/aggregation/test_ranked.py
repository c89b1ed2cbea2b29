"""Median and trimmed mean: those of a plain sort in float64, however the body is cut."""

import numpy as np
import pytest
import torch
from folding import fold, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FLOATS, INTEGERS, as_bytes, assert_same_tensors, cuts, every_kind, tensor

from flstream.aggregation.ranked import fraction_trim, median_trim
from flstream.aggregation.rules import Rule
from flstream.model.dtypes import BY_CODE, torch_dtype


def ranked_mean(values: np.ndarray, trim: int) -> np.ndarray:
    left = np.sort(values, axis=0)[trim : len(values) - trim]
    return left.sum(axis=0) / len(left)


@pytest.mark.parametrize("params_type", ["FULL", "DIFF"])
@pytest.mark.parametrize("code", FLOATS)
@given(count=st.integers(1, 9), trim=st.floats(0, 0.49), seed=st.integers(0, 999))
@settings(max_examples=10, deadline=None)
def test_floats_are_those_of_a_plain_sort_rounded_once(code, params_type, count, trim, seed):
    base = {"w": tensor(code, (60,), seed)}
    states = [{"w": tensor(code, (60,), seed + 1 + i)} for i in range(count)]
    updates = [update(f"{i}", s, i + 1.0, params_type) for i, s in enumerate(states)]
    old = base["w"].double().numpy() if params_type == "DIFF" else 0
    values = np.stack([s["w"].double().numpy() + old for s in states])
    for rule, left_out in (
        (Rule(method="median"), median_trim(count)),
        (Rule(method="trimmed_mean", trim=trim), fraction_trim(trim)(count)),
    ):
        due = torch.from_numpy(ranked_mean(values, left_out)).to(torch_dtype(code))
        assert as_bytes(fold(base, updates, rule)["w"]) == as_bytes(due)


@pytest.mark.parametrize("code", INTEGERS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_integers_are_ranked_as_they_are_and_rounded_half_to_even(code, data):
    limits = np.iinfo(BY_CODE[code].numpy_name)
    near = st.integers(limits.max - 9, limits.max) | st.integers(limits.min, limits.min + 9)
    values = data.draw(st.lists(st.integers(0, 100) | near, min_size=1, max_size=7))
    updates = [
        update(f"{i}", {"w": torch.tensor([value], dtype=torch_dtype(code))})
        for i, value in enumerate(values)
    ]
    found = fold({"w": torch.zeros(1, dtype=torch_dtype(code))}, updates, Rule(method="median"))
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    exact = sum(middle) // len(middle) if sum(middle) % len(middle) == 0 else None
    if exact is None:  # a half
        below = sum(middle) // 2
        exact = below if below % 2 == 0 else below + 1
    # Beyond 2^53 the two in the middle are averaged to the precision of their distance.
    assert abs(found["w"].tolist()[0] - exact) <= (middle[-1] - middle[0]) * 2**-52


def test_a_median_of_large_integers_is_one_of_them():
    values = [2**62 + 1, 2**53 + 1, -(2**63)]
    updates = [update(f"{i}", {"w": torch.tensor([v])}) for i, v in enumerate(values)]
    assert fold({"w": torch.tensor([0])}, updates, Rule(method="median"))["w"] == 2**53 + 1


def test_bools_take_the_majority_and_a_tie_is_false():
    rows = [[True, True, True, False], [True, True, False, False], [True, False, False, False]]
    states = [{"w": torch.tensor(row)} for row in rows]
    base, rule = {"w": torch.zeros(4, dtype=torch.bool)}, Rule(method="median")
    three = [update(f"{i}", state) for i, state in enumerate(states)]
    assert fold(base, three, rule)["w"].tolist() == [True, True, False, False]
    assert fold(base, three[:2], rule)["w"].tolist() == [True, True, False, False]


def test_complex_numbers_are_ranked_by_their_parts():
    parts = [(1.0, 9.0), (2.0, 7.0), (3.0, 8.0)]
    updates = [update(f"{i}", {"w": torch.tensor([complex(*p)])}) for i, p in enumerate(parts)]
    found = fold({"w": torch.tensor([0j])}, updates, Rule(method="median"))
    assert found["w"].tolist() == [2 + 8j]


@pytest.mark.parametrize(
    ("fraction", "count", "left_out"),
    [(0.1, 10, 1), (0.1, 9, 0), (0.2, 5, 1), (0.3, 10, 3), (0.49, 100, 49), (0.0, 5, 0)],
)
def test_a_fraction_is_rounded_down_to_whole_values(fraction, count, left_out):
    assert fraction_trim(fraction)(count) == left_out


@given(fraction=st.floats(0, 0.5, exclude_max=True), count=st.integers(1, 2000))
def test_something_is_always_left(fraction, count):
    assert count - 2 * fraction_trim(fraction)(count) >= 1


@pytest.mark.parametrize("method", ["median", "trimmed_mean"])
def test_one_site_however_loud_does_not_move_the_rest_beyond_their_values(method):
    base = {"w": torch.zeros(50)}
    honest = [update(f"{i}", {"w": torch.full((50,), 1.0 + i)}) for i in range(9)]
    loud = update("loud", {"w": torch.full((50,), 1e30)}, 1e9)
    found = fold(base, [*honest, loud], Rule(method=method))["w"]
    assert ((found >= 1) & (found <= 9)).all()


@given(step=cuts(1400), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_bits_do_not_depend_on_how_the_body_is_cut(step, seed):
    base = every_kind()
    updates = [update(f"{i}", shifted(base, seed + i), 1.0, "DIFF") for i in range(4)]
    for rule in (Rule(method="median", clip_norm=20.0), Rule(method="trimmed_mean", trim=0.25)):
        assert_same_tensors(fold(base, updates, rule, step=step), fold(base, updates, rule))
