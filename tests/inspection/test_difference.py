"""Differences between checkpoints: complete, exact, and the same from every format."""

import math

import numpy as np
import pytest
import torch
from support import every_kind

from flstream.inspection.difference import Changed, Difference, find_difference
from flstream.inspection.elements import BLOCK
from flstream.model.memory import MemoryBody


def difference(one: dict[str, object], two: dict[str, object]) -> Difference:
    sources = [MemoryBody.of(state) for state in (one, two)]
    names = {*one, *two}
    return find_difference(*sources, "other", names)


def changed(one: torch.Tensor, two: torch.Tensor) -> Changed:
    (found,) = difference({"a": one}, {"a": two}).changed
    return found


def test_a_model_does_not_differ_from_itself() -> None:
    state = every_kind()
    found = difference(state, {name: value.clone() for name, value in state.items()})
    assert (found.added, found.removed, found.reshaped, found.changed) == ((), (), (), ())
    assert found.compared == len(state)
    assert (found.equal_share, found.l2) == (1.0, 0.0)


def test_what_is_added_removed_and_reshaped_is_told_apart() -> None:
    one = {"same": torch.zeros(2), "gone": torch.zeros(1), "s": torch.zeros(2), "d": torch.ones(1)}
    two = {"same": torch.zeros(2), "new": torch.zeros(1), "s": torch.zeros(1, 2)}
    found = difference(one, {**two, "d": torch.ones(1).half()})
    assert [spec.name for spec in found.added] == ["new"]
    assert [spec.name for spec in found.removed] == ["gone"]
    assert sorted(each[:4] for each in found.reshaped) == [
        ("d", "F32", (1,), "F16"),
        ("s", "F32", (2,), "F32"),
    ]
    assert found.compared == 1


@pytest.mark.parametrize("code", [c for c in every_kind() if c.endswith(".matrix")])
def test_a_difference_of_every_dtype_is_that_of_float64(code: str) -> None:
    one = every_kind()[code]
    two = one.clone()
    two[3, 2] = True if one.dtype == torch.bool and not one[3, 2] else 0 if one[3, 2] else 1
    wide = torch.complex128 if one.is_complex() else torch.float64
    delta = (one.to(wide) - two.to(wide)).abs()
    found = changed(one, two)
    assert found.max_difference == pytest.approx(delta.max().item())
    assert found.l2 == pytest.approx(delta.square().sum().sqrt().item())


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
def test_norm_maximum_and_equal_bytes_are_exact(one, two, l2, most, equal_bytes) -> None:
    found = changed(*(torch.tensor(each, dtype=torch.float64) for each in (one, two)))
    assert found.max_difference == pytest.approx(most, rel=1e-9, abs=0)
    assert l2 is None or found.l2 == pytest.approx(l2, rel=1e-9, abs=0)
    assert equal_bytes in (None, found.equal_bytes)
    assert found.non_finite == (math.isnan(one[0]))


def test_integers_of_64_bits_do_not_wrap() -> None:
    found = changed(torch.tensor([-(2**63), 5]), torch.tensor([2**63 - 1, 5]))
    assert found.max_difference == 2**64 - 1
    assert found.l2 == pytest.approx(2.0**64)


def test_a_tied_name_stands_for_its_tensor() -> None:
    weight = torch.ones(3)
    tied, untied = {"a": weight, "b": weight}, {"a": weight, "b": weight + 1}
    found = difference(tied, untied)
    assert [each.name for each in found.changed] == ["b"]
    assert (found.added, found.removed) == ((), ())
