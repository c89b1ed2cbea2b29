"""Median and trimmed mean: what is left out. The rest is in test_aggregator_contract.py."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from folding import fold, update
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.aggregation.ranked import fraction_trim
from flstream.aggregation.rules import AggregationRule
from flstream.model.dtypes import BY_CODE, torch_dtype


@pytest.mark.parametrize("code", ["I64", "U64"])
@given(data=st.data())
@settings(max_examples=15)
def test_64_bit_integers_are_ranked_as_they_are_and_rounded_half_to_even(code, data):
    limits, dtype = np.iinfo(BY_CODE[code].numpy_name), torch_dtype(code)
    near = st.integers(limits.max - 9, limits.max) | st.integers(limits.min, limits.min + 9)
    values = data.draw(st.lists(st.integers(0, 100) | near, min_size=1, max_size=7))
    updates = [
        update(f"{i}", {"w": torch.tensor([value], dtype=dtype)}) for i, value in enumerate(values)
    ]
    found = fold({"w": torch.zeros(1, dtype=dtype)}, updates, AggregationRule(method="median"))
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    exact = round(Fraction(sum(middle), len(middle)))
    # Beyond 2^53 the two in the middle are averaged to the precision of their distance.
    assert abs(found["w"].tolist()[0] - exact) <= (middle[-1] - middle[0]) * 2**-52


def test_a_median_of_large_integers_is_one_of_them():
    values = [2**62 + 1, 2**53 + 1, -(2**63)]
    updates = [update(f"{i}", {"w": torch.tensor([v])}) for i, v in enumerate(values)]
    assert (
        fold({"w": torch.tensor([0])}, updates, AggregationRule(method="median"))["w"] == 2**53 + 1
    )


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
    found = fold(base, [*honest, loud], AggregationRule(method=method))["w"]
    assert ((found >= 1) & (found <= 9)).all()
