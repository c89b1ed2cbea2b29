"""Weights and updates of a bench of codecs: seeded, of any size, and as uneven as real ones."""

import numpy as np
import pytest

from flstream.bench.model_like import WIDTH, add_update, build, shapes


def update_of(count, site=1, round_number=1, name="layers.0.weight"):
    numbers = np.zeros(count, np.float32)
    add_update(name, numbers, site, round_number)
    return numbers


@pytest.mark.parametrize("size", [4, 40, 32_772, 256 << 10, 1 << 20, 25_000_000])
def test_a_model_has_exactly_the_bytes_that_were_asked_for(size):
    found = shapes(size // 4)
    assert 4 * sum(int(np.prod(shape)) for shape in found.values()) == size


def test_equal_tensors_have_the_bytes_too():
    assert shapes(10, tensors=3) == {"tensor.0": (4,), "tensor.1": (3,), "tensor.2": (3,)}


def test_the_model_is_the_same_each_time_and_has_no_row_like_another():
    one, other = build(1 << 20), build(1 << 20)
    assert all(one[name].equal(other[name]) for name in one)
    deviations = one["layers.0.weight"].std(dim=1)
    assert deviations.max() > 2 * deviations.min()
    assert abs(one["layers.3.norm"].mean() - 1) < 0.01
    assert not one["layers.0.weight"].equal(one["layers.1.weight"])


def test_an_update_is_of_its_site_and_round():
    first = update_of(3000)
    assert np.array_equal(first, update_of(3000))
    for other in (update_of(3000, site=2), update_of(3000, round_number=2)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_an_update_does_not_depend_on_what_it_is_added_to():
    weights = np.full(5000, 2.0, np.float32)
    add_update("layers.0.weight", weights, 1, 1)
    np.testing.assert_allclose(weights - 2, update_of(5000), atol=1e-6)


def test_an_update_has_heavy_tails_in_rows_of_their_own_scale():
    rows = update_of(64 * WIDTH).reshape(64, WIDTH)
    medians = np.median(np.abs(rows), axis=1)
    assert medians.max() > 2 * medians.min()
    squares = np.sort(rows.reshape(-1).astype(np.float64) ** 2)[::-1]
    largest = squares[: len(squares) // 100].sum() / squares.sum()
    # Of normal numbers the largest hundredth has a twelfth of the energy.
    assert largest > 0.4
