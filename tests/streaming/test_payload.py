"""Payloads: any structure comes back as it was, its types, order and bits."""

import math
import sys

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from payloads import (
    REGISTRY,
    Point,
    assert_same,
    delivered,
    int64s,
    payloads,
    tensors,
    text,
    through,
)

from flstream.errors import PayloadError
from flstream.streaming.payload import pack, pack_native, unpack, unpack_native


@given(payloads)
def test_any_structure_comes_back_with_its_types_order_and_bits(value):
    assert_same(through(value), value)


@given(st.dictionaries(text | int64s, tensors, max_size=6), st.lists(tensors, max_size=3))
def test_whatever_the_keys_are_no_two_tensors_get_one_name(params, more):
    copies = {key: value.clone() for key, value in params.items()}
    packed = pack([params, {"a": copies}, more])
    assert len(packed.tensors) == 2 * len(params) + len(more)


def test_a_tensor_is_named_by_the_path_to_it():
    one, two, three = (torch.zeros(1) for _ in range(3))
    value = {"a": {"b": one}, 'a"]["b': [two], 3: Point(three)}
    names = ['payload["a"]["b"]', 'payload["a\\"][\\"b"][0]', "payload[3].x"]
    assert list(pack(value, registry=REGISTRY).tensors) == names
    assert list(pack(one).tensors) == ["payload"]


def test_a_set_is_sent_in_one_order_whatever_order_it_has():
    names = [f"layer.{number}" for number in range(20)]
    messages = {
        pack([set(order), frozenset([*order, 3, 1.5, 2, None])]).message
        for order in (names, names[::-1])
    }
    assert len(messages) == 1
    nodes_sent = msgspec.msgpack.decode(messages.pop())[1]
    assert nodes_sent[3:23] == sorted(names)


def test_what_does_not_equal_itself_may_be_in_a_set():
    arrived = unpack(pack({math.nan, complex(math.nan, 1), 2.0}).message, {})
    assert len(arrived) == 3
    assert 2.0 in arrived


def test_a_size_arrives_only_where_torch_is(monkeypatch):
    packed = pack(torch.zeros(2, 3).shape)
    assert_same(unpack(packed.message, {}), torch.Size([2, 3]))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PayloadError, match=r"a torch\.Size of .*: torch is not installed"):
        unpack(packed.message, {})


def test_memory_that_cannot_be_written_to_becomes_a_tensor_that_can():
    packed = pack(torch.zeros(2))
    frozen = np.frombuffer(bytes(8), np.float32)
    unpack(packed.message, {"payload": frozen}).add_(1)
    assert not frozen.any()


def test_the_same_tensor_met_twice_travels_once_and_is_one_again():
    tied, array, empty = torch.arange(6.0).reshape(2, 3), np.arange(3), torch.zeros(0)
    value = [tied, tied.detach(), array, array[:], empty, empty, tied.t(), tied[0], tied.to(int)]
    packed = pack(value)
    assert list(packed.tensors) == [f"payload[{index}]" for index in (0, 2, 4, 6, 7, 8)]
    for arrived in (
        unpack(packed.message, delivered(packed.tensors)),
        unpack_native(pack_native(value)),
    ):
        assert_same(arrived, value)
        assert arrived[0] is arrived[1]
        assert arrived[2] is arrived[3]
        assert arrived[4] is arrived[5]


SQUARE, COMPLEX = torch.arange(9.0).reshape(3, 3), torch.tensor([1 + 2j])


@pytest.mark.parametrize(
    ("value", "due"),
    [
        (torch.nn.Parameter(SQUARE), SQUARE),
        (SQUARE.t(), SQUARE.t().contiguous()),
        (np.arange(12)[::-3], np.array([11, 8, 5, 2])),
        (torch.nn.Linear(3, 3).state_dict(), None),
        # They share their memory, and show something else.
        ([COMPLEX, COMPLEX.conj()], [COMPLEX, COMPLEX.conj().resolve_conj()]),
    ],
    ids=["a parameter", "turned", "backwards", "a state dict", "conjugate"],
)
def test_tensors_arrive_as_what_they_show(value, due):
    assert_same(through(value), value if due is None else due)
