"""Counter-based noise: number i is the same however the numbers are cut, and they are normal."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.aggregation.noise import NoiseSource, _log

MANY = 1_000_000


def numbers(name, count, first=0):
    out = np.empty(count)
    NoiseSource(name).fill(first, out)
    return out


@pytest.fixture(scope="module")
def million():
    return numbers("flstream/test", MANY)


def test_a_million_numbers_have_the_moments_of_a_normal_distribution(million):
    error = 1 / math.sqrt(MANY)  # of the mean; the bounds below are five standard errors
    assert abs(million.mean()) < 5 * error
    assert million.var() == pytest.approx(1.0, abs=0.01)
    assert abs((million**3).mean()) < 5 * math.sqrt(15) * error
    assert (million**4).mean() == pytest.approx(3.0, abs=5 * math.sqrt(96) * error)


def test_a_million_numbers_have_the_distribution_function_of_a_normal_one(million):
    found = np.sort(million)
    due = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in found[:: MANY // 1000]])
    steps = np.arange(0, MANY, MANY // 1000) / MANY
    assert np.abs(due - steps).max() < 2.0 / math.sqrt(MANY)  # Kolmogorov and Smirnov, at 0.0007
    assert 4.4 < np.abs(million).max() < 6.5


def test_neighbours_tensors_and_rounds_have_nothing_in_common(million):
    bound = 5 / math.sqrt(MANY)
    pairs = million[: MANY // 4 * 4].reshape(-1, 4)
    for other in range(1, 4):  # the numbers of one step of the counter
        assert abs(np.corrcoef(pairs[:, 0], pairs[:, other])[0, 1]) < 2 * bound
        assert abs(np.corrcoef(pairs[:, 0] ** 2, pairs[:, other] ** 2)[0, 1]) < 2 * bound
    for other in ("flstream/test/1", "flstream/tess", ""):
        assert abs(np.corrcoef(million, numbers(other, MANY))[0, 1]) < bound


@given(first=st.integers(0, 40_000), count=st.integers(0, 9000))
def test_a_range_has_the_bits_that_it_has_in_the_whole(million, first, count):
    found = numbers("flstream/test", count, first)
    assert found.tobytes() == million[first : first + count].tobytes()


def test_a_range_far_behind_can_be_computed_by_itself():
    far = 10**12 + 3
    assert numbers("far", 5, far).tobytes() == numbers("far", 9, far - 4)[4:].tobytes()


def test_the_bits_are_those_of_any_machine():
    """Noise is made of operations that IEEE 754 rounds in one way: these were written down once."""
    digest = hashlib.sha256(numbers("flstream/privacy/7/1/w", 10_000).tobytes()).hexdigest()
    assert digest == "35fc6e76c05119835d90da6d21cbbf1054ac8811fa45d18b4ffd33dd87b74d43"


@given(values=st.lists(st.floats(2.0**-53, 1.0), min_size=1, max_size=50))
def test_the_logarithm_is_that_of_the_mathematicians(values):
    found = np.array(values)
    _log(found, *(np.empty(len(values)) for _ in range(3)))
    assert found == pytest.approx([math.log(value) for value in values], rel=1e-15, abs=0)
