"""Statistics and differences are those that exact arithmetic gives, whatever the dtype."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import every_kind

from flstream.inspection.examine import as_document
from flstream.inspection.numbers import (
    BLOCK,
    Changed,
    Difference,
    Statistics,
    as_array,
    find_difference,
    tensor_statistics,
)
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch


def statistics(tensor: torch.Tensor) -> Statistics:
    body = MemoryBody.of({"a": tensor})
    return tensor_statistics(body, body.layout.tensors[0], Scratch())


def exact(numbers: list[int | float]) -> tuple[float, float]:
    """Mean and standard deviation of the population."""
    values = [Fraction(number) for number in numbers]
    mean = sum(values) / len(values)
    return float(mean), math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


@pytest.mark.parametrize(
    ("dtype", "elements"),
    [
        (torch.float32, st.floats(-(2.0**50), 2.0**50, width=32)),
        (torch.int64, st.integers(-(2**63), 2**63 - 1)),
    ],
)
@given(data=st.data())
def test_numbers_have_the_statistics_that_fractions_give(dtype, elements, data):
    numbers = data.draw(st.lists(elements, min_size=1))
    found = statistics(torch.tensor(numbers, dtype=dtype))
    mean, deviation = exact(numbers)
    scale = max(map(abs, numbers))
    assert (found.min, found.max) == (min(numbers), max(numbers))
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * scale)
    assert found.std == pytest.approx(deviation, rel=1e-9, abs=1e-12 * scale)
    norm = math.sqrt(sum(Fraction(number) ** 2 for number in numbers))
    assert found.norm == pytest.approx(norm, rel=1e-9, abs=1e-12 * scale)
    assert found.zeros == numbers.count(0)
    assert (found.finite, found.non_finite) == (len(numbers), 0)


@pytest.mark.parametrize(
    ("numbers", "mean", "std"),
    [
        # A large mean drowns no small deviation, across blocks.
        (torch.tensor([1e9 - 1, 1e9 + 1], dtype=torch.float64).repeat(BLOCK * 2 + 5), 1e9, 1.0),
        (torch.full((100_000,), 0.1), torch.tensor(0.1).item(), 0.0),
        # Squares beyond the range of float64.
        (torch.tensor([1e308, -1e308] * 3, dtype=torch.float64), 0.0, 1e308),
        (torch.tensor([5e-324, -5e-324] * 3, dtype=torch.float64), 0.0, 5e-324),
        (torch.tensor([3 + 4j, 0, 1j], dtype=torch.complex64), 1 + 5j / 3, math.sqrt(44) / 3),
    ],
)
def test_numbers_of_any_magnitude(numbers, mean, std):
    found = statistics(numbers)
    assert found.mean == pytest.approx(mean)
    assert found.std == pytest.approx(std, rel=1e-6, abs=0)


def test_what_is_not_finite_is_counted_and_left_out():
    numbers = torch.tensor([math.nan, 1.0, math.inf, 3.0, -math.inf, 0.0, -0.0])
    found = statistics(numbers)
    std, norm = pytest.approx(math.sqrt(1.5)), pytest.approx(math.sqrt(10))
    assert found == Statistics(4, 3, 1, 2, 0.0, 3.0, 1.0, std, norm)
    assert statistics(torch.full([BLOCK + 1], math.nan)) == Statistics(0, *[BLOCK + 1] * 2, 0)
    assert statistics(torch.zeros(3, 0)) == Statistics(0, 0, 0, 0)
    found = statistics(torch.tensor([3 + 4j, 0, 1j, complex(0, math.nan)], dtype=torch.complex64))
    assert (found.finite, found.nan, found.zeros) == (3, 1, 1)
    assert (found.min, found.max) == (0.0, 5.0)  # ordered by their absolute values
    assert as_document(found)["mean"] == pytest.approx([1.0, 5 / 3])
    assert as_array("BOOL", memoryview(b"\0\1\2\xff")).tolist() == [False, True, True, True]


def test_every_dtype_agrees_with_torch_in_float64():
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


def difference(one: dict[str, object], two: dict[str, object]) -> Difference:
    sources = [MemoryBody.of(state) for state in (one, two)]
    return find_difference(*sources, "other")


def changed(one: torch.Tensor, two: torch.Tensor) -> Changed:
    (found,) = difference({"a": one}, {"a": two}).changed
    return found


def test_a_model_does_not_differ_from_itself_and_integers_of_64_bits_do_not_wrap():
    state = every_kind()
    found = difference(state, {name: value.clone() for name, value in state.items()})
    assert [*found.added, *found.removed, *found.reshaped, *found.changed] == []
    assert (found.compared, found.equal_share, found.l2) == (len(state), 1.0, 0.0)
    found = changed(torch.tensor([-(2**63), 5]), torch.tensor([2**63 - 1, 5]))
    assert (found.max_difference, found.l2) == (2**64 - 1, pytest.approx(2.0**64))


def test_what_is_added_removed_and_reshaped_is_told_apart():
    one = {"same": torch.zeros(2), "gone": torch.zeros(1), "s": torch.zeros(2), "d": torch.ones(1)}
    two = {"same": torch.zeros(2), "new": torch.zeros(1), "s": torch.zeros(1, 2)}
    found = difference(one, {**two, "d": torch.ones(1).half()})
    assert [spec.name for spec in (*found.added, *found.removed)] == ["new", "gone"]
    reshaped = {("d", "F32", (1,), "F16"), ("s", "F32", (2,), "F32")}
    assert {(e.name, e.dtype, e.shape, e.other_dtype) for e in found.reshaped} == reshaped
    assert found.compared == 1
    # A tied name stands for its tensor.
    weight = torch.ones(3)
    found = difference({"a": weight, "b": weight}, {"a": weight, "b": weight + 1})
    assert [each.name for each in found.changed] == ["b"]
    assert [*found.added, *found.removed] == []


@pytest.mark.parametrize(
    ("one", "two", "l2", "most", "equal_bytes"),
    [
        ([0.0, 1.0, 2.0, 3.0], [0.0, 4.0, 2.0, -1.0], 5.0, 4.0, 28),
        # Another sign of zero is a change by nothing.
        ([0.0, 1.0], [-0.0, 1.0], 0.0, 0.0, 15),
        ([1e-200], [-1e-200], 2e-200, 2e-200, 7),
        ([1.7e308, 0.0], [-1.7e308, 0.0], None, np.finfo(np.float64).max, 15),
        ([0.0] * (BLOCK * 3 + 7), [2.0] * (BLOCK * 3 + 7), 2 * math.sqrt(BLOCK * 3 + 7), 2.0, None),
        # What is not finite is left out.
        ([math.nan, math.nan, 1.0], [math.nan, 0.0, 3.0], 2.0, 2.0, None),
    ],
)
def test_norm_maximum_and_equal_bytes_are_exact(one, two, l2, most, equal_bytes):
    found = changed(*(torch.tensor(each, dtype=torch.float64) for each in (one, two)))
    assert found.max_difference == pytest.approx(most, rel=1e-9, abs=0)
    assert l2 is None or found.l2 == pytest.approx(l2, rel=1e-9, abs=0)
    assert equal_bytes in (None, found.equal_bytes)
    assert found.non_finite == (math.isnan(one[0]))
