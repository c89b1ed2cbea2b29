"""Payloads of a peer that means harm: typed errors alone, of which the sender hears."""

from decimal import Decimal

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from harness import QUICK
from payloads import REGISTRY, assert_same

from flstream.errors import LayoutError, PayloadError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming import nodes
from flstream.streaming.api import add_payload, download_payload
from flstream.streaming.decomposers import Registry


def as_bytes(data):
    return np.frombuffer(data, np.uint8)


def message(*content):
    return as_bytes(msgspec.msgpack.encode([nodes.VERSION, content]))


def piece(text, **tensors):
    return as_bytes(msgspec.msgpack.encode(nodes.Native(text.tobytes(), tensors)))


W = torch.zeros(2)
TENSOR = nodes.TensorRef("w", "pytorch")


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"w": W}, "what server offers is no payload: it lacks the bytes of a message"),
        ({"message": torch.zeros(9)}, "lacks the bytes of a message"),
        ({"message": message(None).reshape(1, -1)}, "lacks the bytes of a message"),
        ({"piece": as_bytes(b"")}, "lacks the bytes of a message"),
        ({"message": np.zeros(nodes.MAX_MESSAGE_BYTES + 1, np.uint8)}, "offers takes 8388609 byte"),
        ({"piece": piece(message(None)), "w": W}, "there are tensors beside its piece"),
        ({"message": as_bytes(b"\x00")}, "cannot be read"),
        ({"message": message(nodes.TensorRef("message", "numpy"))}, "which did not arrive"),
        ({"piece": as_bytes(b"\x00")}, "cannot be read"),
        ({"piece": piece(as_bytes(b"\x00"))}, "cannot be read"),
        ({"piece": piece(message(TENSOR))}, "is the tensor 'w', which did not arrive"),
        ({"piece": piece(message(TENSOR), w=b"junk")}, "tensor 'w' of a payload cannot be loaded"),
        (
            {"piece": piece(message(TENSOR), w=safetensors.torch.save({"C128": torch.ones(3)}))},
            "tensor 'w' of a payload cannot be loaded",
        ),
    ],
)
def test_what_is_no_payload_is_a_typed_error_and_the_sender_hears_of_it(harness, tensors, sentence):
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    receiver = harness.receiver()
    with pytest.raises(PayloadError, match=sentence):
        download_payload(receiver, ref.token, settings=QUICK, registry=REGISTRY)
    assert ref.wait(30).status == "aborted"
    # The channel serves on.
    ref = add_payload(harness.service, [1, W], ["site-1"])
    assert_same(download_payload(receiver, ref.token, settings=QUICK)[1], [1, W])


def test_a_payload_that_claims_more_memory_than_there_is_is_refused_before_a_byte(harness):
    body = MemoryBody.of({"message": message(TENSOR), "w": W})
    specs = list(body.layout.tensors)
    w = specs[0]._replace(shape=(2**45,), stop=2**47)
    rest = specs[1]._replace(start=2**47, stop=2**47 + specs[1].nbytes)
    layout = Layout([w, rest])
    pieces = dict.fromkeys(("w", "message"), memoryview(b""))
    ref = harness.service.offer(MemoryBody(layout, {}, pieces), ["site-1"])
    with pytest.raises(LayoutError, match="does not fit into the machine's"):
        download_payload(harness.receiver(), ref.token, settings=QUICK)
    assert ref.deliveries["site-1"].requests == 0


class Sum:
    """Needs the bytes of its tensor to be put together, and refuses some."""

    name = "sum"
    supported_type = Decimal

    def decompose(self, value):
        return torch.full((5000,), float(value))

    def recompose(self, payload):
        total = float(payload.sum())
        if total < 0:
            raise RuntimeError("no debts")
        return Decimal(total)


@pytest.mark.parametrize("native", [False, True])
def test_a_decomposer_is_given_tensors_whose_bytes_are_there_and_may_refuse_them(harness, native):
    registry, receiver = Registry(), harness.receiver()
    registry.register(Sum())

    def fetch(value):
        ref = add_payload(
            harness.service, Decimal(value), ["site-1"], native=native, registry=registry
        )
        return ref, lambda: download_payload(receiver, ref.id, settings=QUICK, registry=registry)

    assert fetch(2)[1]()[1] == 10_000
    ref, download = fetch(-2)
    with pytest.raises(PayloadError, match="a sum of a payload cannot be made: no debts"):
        download()
    assert "no debts" in ref.wait(30).reason
