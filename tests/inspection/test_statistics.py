"""Statistics are those that exact arithmetic gives, whatever the dtype and the magnitude."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import as_bytes, every_kind

from flstream.inspection.elements import BLOCK, as_array
from flstream.inspection.statistics import Statistics, tensor_statistics
from flstream.model.body import Scratch
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.memory import MemoryBody


def statistics(tensor: torch.Tensor) -> Statistics:
    body = MemoryBody.of({"a": tensor})
    return tensor_statistics(body, body.layout.tensors[0], Scratch())


def exact(numbers: list[int | float]) -> tuple[float, float]:
    """Mean and standard deviation of the population, rounded once."""
    values = [Fraction(number) for number in numbers]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    # The root of a fraction in two halves, since its float may be out of range.
    shift = 2 ** (max(variance.numerator.bit_length() - variance.denominator.bit_length(), -2000))
    scale = Fraction(2) ** (round(math.log2(shift)) // 2) if variance else Fraction(1)
    return float(mean), float(Fraction(math.sqrt(variance / scale**2)) * scale)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_have_the_statistics_that_fractions_give(numbers: list[float]) -> None:
    found = statistics(torch.tensor(numbers, dtype=torch.float32))
    mean, deviation = exact(numbers)
    scale = max(map(abs, numbers))
    assert (found.min, found.max) == (min(numbers), max(numbers))
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-15 * scale)
    assert found.std == pytest.approx(deviation, rel=1e-9, abs=1e-15 * scale)
    assert found.zeros == numbers.count(0.0)
    assert (found.finite, found.non_finite) == (len(numbers), 0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_64_bit_integers_have_them_too(numbers: list[int]) -> None:
    found = statistics(torch.tensor(numbers, dtype=torch.int64))
    mean, deviation = exact(numbers)
    assert (found.min, found.max) == (min(numbers), max(numbers))
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * max(map(abs, numbers)))
    assert found.std == pytest.approx(deviation, rel=1e-9)


def test_integers_that_float64_cannot_tell_apart_have_a_deviation() -> None:
    found = statistics(torch.tensor([2**62 + 1, 2**62 + 3]))
    assert found.std == 1.0


def test_a_large_mean_does_not_drown_a_small_deviation_across_blocks() -> None:
    numbers = torch.tensor([1e9 - 1, 1e9 + 1], dtype=torch.float64).repeat(BLOCK * 2 + 5)
    found = statistics(numbers)
    assert (found.mean, found.std) == (1e9, 1.0)


@pytest.mark.parametrize("scale", [1e308, 1e-300, 5e-324])
def test_squares_beyond_the_range_of_float64_do_no_harm(scale: float) -> None:
    found = statistics(torch.tensor([scale, -scale] * 3, dtype=torch.float64))
    assert found.mean == 0
    assert found.std == pytest.approx(scale, rel=1e-12, abs=0)


def test_the_same_number_everywhere_deviates_by_nothing() -> None:
    assert statistics(torch.full((100_000,), 0.1)).std == 0


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    numbers = torch.tensor([math.nan, 1.0, math.inf, 3.0, -math.inf, 0.0, -0.0])
    found = statistics(numbers)
    assert found == Statistics(4, 3, 2, 0.0, 3.0, 1.0, pytest.approx(math.sqrt(1.5)))
    nothing = statistics(torch.full((BLOCK + 1,), math.nan))
    assert nothing == Statistics(0, BLOCK + 1, 0, None, None, None, None)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
@pytest.mark.parametrize("code", BY_CODE)
def test_an_empty_tensor_has_none(code: str, shape: tuple[int, ...]) -> None:
    found = statistics(torch.zeros(shape, dtype=torch_dtype(code)))
    assert found == Statistics(0, 0, 0, None, None, None, None)


def test_every_dtype_agrees_with_torch_in_float64() -> None:
    for name, tensor in every_kind().items():
        if not tensor.numel():
            continue
        found = statistics(tensor)
        wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        mean = wide.mean().item()
        assert found.mean == pytest.approx(mean), name
        assert found.std == pytest.approx((wide - mean).abs().square().mean().sqrt().item()), name
        if not tensor.is_complex():
            assert (found.min, found.max) == (wide.min().item(), wide.max().item()), name
        assert found.zeros == int((wide == 0).sum()), name


def test_complex_elements_are_ordered_by_their_absolute_values() -> None:
    found = statistics(torch.tensor([3 + 4j, 0, 1j, complex(0, math.nan)], dtype=torch.complex64))
    assert found[:5] == (3, 1, 1, 0.0, 5.0)
    assert found.mean == pytest.approx(1 + 5j / 3)
    assert found.document()["mean"] == pytest.approx([1.0, 5 / 3])


def test_any_byte_of_a_bool_but_0_is_true() -> None:
    assert as_array("BOOL", memoryview(b"\0\1\2\xff")).tolist() == [False, True, True, True]


@pytest.mark.parametrize("code", [c for c in BY_CODE if c[:2] in ("F8", "BF")] + ["F16"])
def test_every_small_float_is_the_number_that_torch_says(code: str) -> None:
    size = BY_CODE[code].itemsize
    bits = torch.arange(256**size, dtype=torch.int32).to(torch.uint8 if size == 1 else torch.uint16)
    tensor = bits.view(torch_dtype(code))
    ours = as_array(code, memoryview(as_bytes(tensor))).astype(np.float32)
    np.testing.assert_array_equal(ours, tensor.float().numpy())
