"""Percentiles and order statistics of numbers in blocks, against NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flstream.filters import selection
from flstream.filters.selection import order_statistics, percentile_of

NUMBERS = hnp.arrays(
    np.float64,
    st.integers(1, 300),
    elements=st.floats(0, allow_nan=False, allow_infinity=True, allow_subnormal=True)
    | st.sampled_from([0.0, 0.5, 1.0, 1.0 + 2**-52]),
)


def in_blocks(numbers, size=7):
    return lambda: (numbers[at : at + size] for at in range(0, len(numbers), size))


@pytest.fixture(params=[1 << 18, 3], ids=["kept", "counted"])
def most_kept(request, monkeypatch):
    monkeypatch.setattr(selection, "_MOST_KEPT", request.param)


@pytest.mark.usefixtures("most_kept")
@given(numbers=NUMBERS, data=st.data())
def test_order_statistics_are_those_of_the_sorted_numbers(numbers, data):
    rank = data.draw(st.integers(0, len(numbers) - 1))
    ranks = [rank, min(rank + 1, len(numbers) - 1), 0]
    found = order_statistics(in_blocks(numbers), len(numbers), ranks)
    assert found == np.sort(numbers)[ranks].tolist()


def test_millions_of_numbers_take_two_passes():
    numbers = np.abs(np.random.default_rng(3).normal(size=3_000_000)) * 1e-3
    passes = []

    def blocks():
        passes.append(1)
        return (numbers[at : at + 16_384] for at in range(0, len(numbers), 16_384))

    assert percentile_of(blocks, len(numbers), 10) == np.percentile(numbers, 10)
    assert len(passes) == 2
