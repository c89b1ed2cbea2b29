"""What may be logged, and what is refused with a sentence."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch

from flstream.client.logged_values import LoggedValue, step_of, values_of
from flstream.errors import ClientError


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.25, 0.25),
        (3, 3.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (np.array([[2.5]]), 2.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([2], dtype=torch.int16), 2.0),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (Decimal("0.125"), 0.125),
        (math.inf, math.inf),
    ],
)
def test_numbers_of_any_kind_are_floats(value, number):
    assert list(values_of("loss", value)) == [LoggedValue("loss", number)]


def test_nan_is_a_number():
    (found,) = values_of("loss", float("nan"))
    assert found.number is not None
    assert math.isnan(found.number)


def test_text_is_text_also_where_it_reads_like_a_number():
    assert list(values_of("note", "0.5")) == [LoggedValue("note", None, "0.5")]


def test_what_no_message_can_carry_is_written_out():
    assert list(values_of("a\ud800", "\udfff")) == [LoggedValue("a\\ud800", None, "\\udfff")]


def test_a_mapping_is_several_values():
    given = {"train": 1.0, "val": np.float64(2.0), "note": "late"}
    assert list(values_of("losses", given)) == [
        LoggedValue("losses/train", 1.0),
        LoggedValue("losses/val", 2.0),
        LoggedValue("losses/note", None, "late"),
    ]
    assert list(values_of("losses", {})) == []


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([1.0], "a list"),
        (None, "a NoneType"),
        (b"1.0", "a bytes"),
        (1j, "a complex"),
        (np.zeros(2), "a ndarray"),
        (torch.zeros(2), "a Tensor"),
        (np.datetime64("2026-11-22"), "a datetime64"),
        (10**400, "1000"),
        ({"deep": {"er": 1.0}}, "a dict"),
    ],
)
def test_anything_else_is_refused_by_name(value, what):
    with pytest.raises(ClientError, match=r"give it a number, text, or a mapping") as caught:
        list(values_of("loss", value))
    assert "log('loss" in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize("key", ["", 3, None])
def test_a_key_is_text(key):
    with pytest.raises(ClientError, match="as a key; give it the value's name, as text"):
        list(values_of(key, 1.0))


def test_text_that_is_too_long_is_refused():
    with pytest.raises(ClientError, match="1048576 is most"):
        list(values_of("note", "x" * (1 << 20) + "x"))


@pytest.mark.parametrize("long", [("x" * 1001, 1.0), ("x", {"y" * 1000: 1.0})])
def test_a_name_that_no_table_could_show_is_refused_by_its_beginning(long):
    with pytest.raises(ClientError, match=r"the value 'x.{39}'\.\.\. has 100[12] characters"):
        list(values_of(*long))


@pytest.mark.parametrize("step", [0, -5, 2**63 - 1, np.int32(4), torch.tensor(6)])
def test_a_step_is_an_int_of_any_library(step):
    assert step_of("loss", step) == int(step)


def test_there_need_not_be_a_step():
    assert step_of("loss", None) is None


@pytest.mark.parametrize("step", [1.0, "1", True, 2**63, torch.zeros(2), [1]])
def test_another_step_is_refused(step):
    with pytest.raises(ClientError, match=r"log\('loss'\) was given .* as global_step; give it an"):
        step_of("loss", step)
