"""The mean: its numerics at the ends of every type. The rest is in test_aggregator_contract.py."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from folding import fold, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import as_bytes, cuts, tensor

from flstream.aggregation.elements import Elements
from flstream.model.dtypes import BY_CODE, torch_dtype

WEIGHTS = (3.0, 1.0, 7.5)


def mean_of(tensors, weights=None, step=1 << 20):
    """The mean of tensors of one dtype, in their order."""
    updates = [
        update(f"site-{i}", {"w": value}, weight)
        for i, (value, weight) in enumerate(
            zip(tensors, weights or [1.0] * len(tensors), strict=True)
        )
    ]
    return fold({"w": torch.zeros_like(tensors[0])}, updates, step=step)["w"]


def exact_mean(values, weights):
    """Half to even, of the exact quotient."""
    total = sum(Fraction(w) * v for v, w in zip(values, weights, strict=True))
    return round(total / sum(map(Fraction, weights)))


@pytest.mark.parametrize("code", ["I64", "U64"])
@given(st.data())
@settings(max_examples=50)
def test_64_bit_integers_are_the_mean_to_15_digits_of_their_spread(code, data):
    limits = np.iinfo(BY_CODE[code].numpy_name)
    edges = st.sampled_from([limits.min, limits.min + 1, limits.max - 1, limits.max])
    numbers = st.one_of(st.integers(limits.min, limits.max), edges)
    values = data.draw(st.lists(numbers, min_size=1, max_size=4))
    weight = st.one_of(st.integers(1, 64).map(float), st.sampled_from([1e-20, 1e-300, 1e20]))
    weights = data.draw(st.lists(weight, min_size=len(values), max_size=len(values)))
    folded = mean_of([torch.tensor([v], dtype=torch_dtype(code)) for v in values], weights)
    spread = max(values) - min(values)
    assert abs(folded.tolist()[0] - exact_mean(values, weights)) <= spread * 2**-50 + 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_half_is_rounded_to_even_whichever_update_comes_first(order):
    values = [torch.tensor([v], dtype=torch.uint8) for v in (0, 255)][::order]
    assert mean_of(values).tolist() == [128]
    values = [torch.tensor([v], dtype=torch.int8) for v in (-128, 127)][::order]
    assert mean_of(values).tolist() == [0]
    values = [torch.tensor([v], dtype=torch.int64) for v in (2**60 + 1, 2**60 + 2)][::order]
    assert mean_of(values).tolist() == [2**60 + 2]


def test_the_ends_of_64_bits_average_to_their_middle():
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    assert mean_of([torch.tensor([low, high]), torch.tensor([high, low])]).tolist() in (
        [0, 0],
        [0, -1],
    )
    top = torch.tensor([2**64 - 1], dtype=torch.uint64)
    zero = torch.tensor([0], dtype=torch.uint64)
    assert mean_of([zero, top]).tolist() == [2**63]
    # The step between them rounds to 2^64: it must not lead round to the other end.
    assert mean_of([zero, top], [1e-20, 1.0]).tolist() == [2**64 - 1]
    assert mean_of([torch.tensor([low]), torch.tensor([high])], [1e-20, 1.0]).tolist() == [high]
    assert mean_of([torch.tensor([high]), torch.tensor([low])], [1e-20, 1.0]).tolist() == [low]


def test_a_bool_is_true_where_more_than_half_the_weight_says_so():
    updates = [
        torch.tensor([True, True, True, False]),
        torch.tensor([True, False, False, False]),
        torch.tensor([True, True, False, False]),
    ]
    assert mean_of(updates).tolist() == [True, True, False, False]
    assert mean_of(updates, [1.0, 2.0, 1.0]).tolist() == [True, False, False, False]
    assert mean_of(updates, [5.0, 2.0, 1.0]).tolist() == [True, True, True, False]


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_minus_zero_stays_minus_zero_where_all_agree(code):
    minus = torch.tensor([-0.0, -0.0], dtype=torch.float32).to(torch_dtype(code))
    assert as_bytes(mean_of([minus] * 3, WEIGHTS)) == as_bytes(minus)
    mixed = mean_of([minus, minus.float().neg().to(minus.dtype)])
    assert not mixed.float().signbit().any()


def test_half_floats_of_large_weights_do_not_overflow():
    updates = [torch.full((9,), 100.0, dtype=torch.float16) for _ in range(3)]
    assert (mean_of(updates, [1000.0] * 3) == 100).all()
    top = torch.full((9,), 65504.0, dtype=torch.float16)
    assert (mean_of([top] * 4, [1e6] * 4) == 65504).all()


def test_weights_count_only_by_their_ratio():
    updates = [tensor("F32", (1000,), seed) for seed in range(3)]
    small = mean_of(updates, [1.0, 2.0, 4.0])
    assert as_bytes(small) == as_bytes(mean_of(updates, [256.0, 512.0, 1024.0]))


@given(
    code=st.sampled_from(["F64", "F32", "F16", "BF16"]),
    shape=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    step=cuts(3000),
)
@settings(max_examples=60, deadline=None)
def test_floats_are_within_an_ulp_of_the_exact_mean(code, shape, weights, seed, step):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch_dtype(code)
    updates = [torch.randn(shape, generator=generator).to(dtype) for _ in weights]
    found = mean_of(updates, weights, step=step)
    # Where values cancel, what float64 rounds off shows.
    largest = max(float(u.abs().max()) for u in updates)
    least = torch.finfo(dtype).smallest_normal + 2**-48 * largest
    for place, values in enumerate(zip(*(u.flatten().tolist() for u in updates), strict=True)):
        exact = sum(Fraction(w) * Fraction(v) for w, v in zip(weights, values, strict=True))
        exact /= sum(map(Fraction, weights))
        ulp = torch.finfo(dtype).eps * abs(exact)
        assert abs(Fraction(found.flatten()[place].item()) - exact) <= max(ulp, least)


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
    given = np.concatenate(
        [values, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    )
    stored = bytearray(len(given) * dtype.itemsize)
    elements = Elements(code, memoryview(stored))
    elements.store(slice(0, len(given)), given.copy())
    found = torch.frombuffer(stored, dtype=dtype).double().numpy()
    nearest = np.abs(given[:, None] - values[None, :]).min(axis=1)
    assert (np.abs(found - given) == nearest).all()
