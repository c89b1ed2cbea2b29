"""What may be logged, and what is refused with a sentence."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch

from flstream.errors import ClientError
from flstream.worker.logged_values import step_of, values_of

NUMBERS = {
    0.25: (0.25, np.array([[0.25]]), torch.tensor(0.25, requires_grad=True), Decimal("0.25")),
    1.0: (1, True, np.float32(1), np.int64(1), torch.tensor([1], dtype=torch.int16)),
    math.inf: (math.inf,),
}


def test_numbers_of_any_kind_are_floats():
    for number, kinds in NUMBERS.items():
        for value in kinds:
            assert list(values_of("loss", value)) == [("loss", number, None)]


def test_nan_is_a_number_and_text_is_text_of_what_a_message_can_carry():
    (found,) = values_of("loss", float("nan"))
    assert math.isnan(found[1])
    assert list(values_of("note", "0.5")) == [("note", None, "0.5")]
    assert list(values_of("a\ud800", "\udfff")) == [("a\\ud800", None, "\\udfff")]


OTHERS = [[1.0], None, b"1.0", 1j, np.zeros(2), torch.zeros(2), np.datetime64("2026-11-22")]


@pytest.mark.parametrize("value", [*OTHERS, {"deep": {"er": 1.0}}], ids=lambda v: type(v).__name__)
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(ClientError, match=r"give it a number, text, or a mapping") as caught:
        list(values_of("loss", value))
    assert "log('loss" in str(caught.value)
    assert f"a {type(value).__name__}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("loss", 10**400, "1000"),
        ("", 1.0, "as a key; give it the value's name, as text"),
        (3, 1.0, "as a key; give it the value's name, as text"),
        ("note", "x" * (1 << 20) + "x", "1048576 is most"),
        ("x" * 1001, 1.0, r"the value 'x.{39}'\.\.\. has 1001 characters"),
        ("x", {"y" * 1000: 1.0}, r"the value 'x.{39}'\.\.\. has 1002 characters"),
    ],
    ids=["no float", "empty", "number", "long text", "long name", "long names"],
)
def test_a_name_is_text_that_a_table_can_show_and_text_has_a_limit(key, value, words):
    with pytest.raises(ClientError, match=words):
        list(values_of(key, value))


def test_a_step_is_an_int_of_any_library_or_none():
    for step in (0, -5, 2**63 - 1, np.int32(4), torch.tensor(6)):
        assert step_of("loss", step) == int(step)
    assert step_of("loss", None) is None
    for step in (1.0, "1", True, 2**63, torch.zeros(2), [1]):
        with pytest.raises(ClientError, match=r"log\('loss'\) was given .* as global_step"):
            step_of("loss", step)
