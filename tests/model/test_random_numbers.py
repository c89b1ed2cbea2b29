"""Random numbers by place: their distribution, and that an element's depends on its index alone."""

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.model import random_numbers
from flstream.model.random_numbers import laplaces, normals, stream_key, uniforms, words

KEY = stream_key(7, "noise", "layer.weight")
KINDS = (words, uniforms, normals, laplaces)
MANY = 1_000_000


@pytest.mark.parametrize("kind", KINDS)
@given(
    start=st.integers(0, 2**60),
    cuts=st.lists(st.integers(0, 40_000), min_size=2, max_size=5).map(sorted),
)
def test_numbers_are_the_same_however_a_stream_is_cut(kind, start, cuts):
    whole = kind(KEY, start, 40_000)
    parts = [kind(KEY, start + low, high - low) for low, high in pairwise(cuts)]
    assert np.concatenate(parts).tobytes() == whole[cuts[0] : cuts[-1]].tobytes()


def test_normal_and_laplace_numbers_are_the_quantiles_of_the_uniform_ones():
    uniform, inverse = uniforms(KEY, 0, 50_000), NormalDist().inv_cdf
    expected = np.array([inverse(each) for each in uniform])
    np.testing.assert_allclose(normals(KEY, 0, 50_000), expected, rtol=1e-14, atol=1e-16)
    expected = -np.sign(uniform - 0.5) * np.log(1 - 2 * np.abs(uniform - 0.5))
    np.testing.assert_allclose(laplaces(KEY, 0, 50_000), expected, rtol=1e-14, atol=1e-16)
    drawn = normals(KEY, 0, MANY)
    assert abs(drawn.mean()) < 4 / math.sqrt(MANY)
    assert abs((drawn**4).mean() - 3) < 4 * math.sqrt(96 / MANY)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / math.sqrt(MANY)
    numbers = np.linspace(-700, 700, 20_001)
    np.testing.assert_allclose(random_numbers.exponentials(numbers), np.exp(numbers), rtol=4e-16)
    np.testing.assert_allclose(
        random_numbers.logarithms(np.exp(numbers)), numbers, rtol=4e-16, atol=4e-16
    )


def test_uniform_numbers_lie_evenly_and_streams_of_other_keys_have_nothing_in_common():
    drawn = uniforms(KEY, 0, MANY)
    assert 0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 4 / math.sqrt(12 * MANY)
    counts = np.histogram(drawn, 100, (0, 1))[0]
    # Chi squared of 99 degrees of freedom: mean 99, standard deviation 14.
    assert ((counts - MANY / 100) ** 2 / (MANY / 100)).sum() < 99 + 5 * 14
    parts = [(7, "a", "b"), (7, "ab"), (7, "a", "c"), (8, "a", "b"), ("7", "a", "b")]
    streams = [words(stream_key(*each), 0, 1000) for each in parts]
    assert len({word for stream in streams for word in stream.tolist()}) == 5000
