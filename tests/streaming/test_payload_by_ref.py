"""Payloads under one ref: any structure arrives as it was, and what is no payload is refused."""

from dataclasses import replace
from decimal import Decimal

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from harness import QUICK
from payloads import NUMPY_CODES, REGISTRY, assert_same
from support import tensor

from flstream.errors import LayoutError, PayloadError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming import nodes, payload_body
from flstream.streaming.api import add_payload, download_payload
from flstream.streaming.decomposers import Registry

WAYS = pytest.mark.parametrize("native", [False, True], ids=["streamed", "piece"])


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return tensor("F32", shape, seed)


def sent(harness, value, how=QUICK, **kwargs):
    """The value as it arrives, with both sides content."""
    ref = add_payload(harness.service, value, ["site-1"], registry=REGISTRY, **kwargs)
    status, arrived = download_payload(
        harness.receiver(), ref.token, settings=how, registry=REGISTRY
    )
    assert status.ok, status.reason
    assert ref.wait(30).ok
    return arrived


def given_to(told):
    """A callback that notes each tensor, which may be told of once."""

    def on_tensors(tensors):
        assert not told.keys() & tensors.keys()
        told.update(tensors)

    return on_tensors


@WAYS
def test_tensors_that_were_one_are_one_and_an_array_over_their_memory_too(harness, native):
    weight = numbers(5, 5)
    arrived = sent(harness, [weight, {"tied": weight}, weight.numpy()], native=native)
    assert arrived[0] is arrived[1]["tied"]
    assert_same(arrived[2], weight.numpy())
    if not native:
        arrived[0][0, 0] = 999
        assert arrived[2][0, 0] == 999


@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
def test_whatever_allocates_tensors_and_arrays_are_what_they_were(harness, framework):
    value = {code: (tensor(code, (3,)), tensor(code, (4,)).numpy()) for code in NUMPY_CODES}
    ref = add_payload(harness.service, value, ["site-1"])
    told, how = {}, {"settings": QUICK, "framework": framework}
    _, arrived = download_payload(harness.receiver(), ref.id, on_tensors=given_to(told), **how)
    assert_same(arrived, value)
    kind = torch.Tensor if framework == "pytorch" else np.ndarray
    assert {type(each) for each in told.values()} == {kind}
    told['payload["F32"][0]'][0] = told['payload["F32"][1]'][0] = 55  # over the same memory
    assert arrived["F32"][0][0] == arrived["F32"][1][0] == 55


def test_arrays_alone_cannot_hold_what_numpy_lacks(harness):
    ref = add_payload(harness.service, {"b": tensor("BF16", (3,))}, ["site-1"])
    with pytest.raises(LayoutError, match=r"""'payload\["b"\]' .*NumPy does not have"""):
        download_payload(harness.receiver(), ref.token, settings=QUICK, framework="numpy")
    assert "NumPy does not have" in ref.wait(30).reason


@WAYS
@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_module_receives_into_its_own_parameters_and_the_rest_gets_new_memory(
    harness, native, chunk_size
):
    theirs, ours = torch.nn.Linear(70, 30), torch.nn.Linear(70, 30)
    array = np.zeros(5, np.int64)
    pointer = ours.weight.data_ptr()
    value = {"net": theirs.state_dict(), "more": [np.arange(5), numbers(9)], "round": 3}
    ref = add_payload(harness.service, value, ["site-1"], native=native)
    into = {"net": ours.state_dict(), "more": (array,)}
    how = replace(QUICK, chunk_size=chunk_size)
    status, arrived = download_payload(harness.receiver(), ref.token, settings=how, into=into)
    assert status.ok
    assert_same(arrived, value)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert arrived["net"]["weight"].data_ptr() == ours.weight.data_ptr() == pointer
    assert arrived["more"][0] is array


same = np.zeros(4, np.float32)


@WAYS
@pytest.mark.parametrize(
    ("into", "sentence"),
    [
        ({"a": torch.zeros(5)}, r"""'payload\["a"\]' has shape \[5\] instead of \[4\]"""),
        ({"c": torch.zeros(4)}, r"""'payload\["c"\]' is not part of the model"""),
        ({"a": torch.zeros(8)[::2]}, r"""'payload\["a"\]' is not contiguous"""),
        # Two tensors cannot be received into one memory.
        ({"a": same, "b": torch.from_numpy(same)}, r"""'payload\["b"\]'"""),
        ({"message": torch.zeros(4)}, r"""'payload\["message"\]' is not part of the model"""),
    ],
)
def test_what_does_not_fit_is_an_error_and_the_sender_hears_why(harness, into, sentence, native):
    value = {"a": numbers(4), "b": numbers(4, seed=1)}
    ref = add_payload(harness.service, value, ["site-1"], native=native)
    with pytest.raises(LayoutError, match=sentence):
        download_payload(harness.receiver(), ref.token, settings=QUICK, into=into)
    assert ref.wait(30).status == "aborted"


def test_names_that_take_too_much_room_are_refused_by_their_path(harness, monkeypatch):
    monkeypatch.setattr(payload_body, "MAX_HEADER_BYTES", 1000)
    many = {"w": 1, "a" * 300: [torch.zeros(1) for _ in range(9)]}
    with pytest.raises(PayloadError, match=r'shapes of 9 tensors .* payload\["a{191}: shorten'):
        add_payload(harness.service, many, ["site-1"])


def as_array(data):
    return np.frombuffer(data, np.uint8)


def message(*content):
    return as_array(msgspec.msgpack.encode([nodes.VERSION, content]))


def piece(text, **tensors):
    return as_array(msgspec.msgpack.encode(nodes.Native(text.tobytes(), tensors)))


W = torch.zeros(2)
TENSOR = nodes.TensorRef("w", "pytorch")


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"w": W}, "what server offers is no payload: it lacks the bytes of a message"),
        ({"message": torch.zeros(9)}, "lacks the bytes of a message"),
        ({"message": message(None).reshape(1, -1)}, "lacks the bytes of a message"),
        ({"piece": as_array(b"")}, "lacks the bytes of a message"),
        ({"message": np.zeros(nodes.MAX_MESSAGE_BYTES + 1, np.uint8)}, "offers takes 8388609 byte"),
        ({"piece": piece(message(None)), "w": W}, "there are tensors beside its piece"),
        ({"message": as_array(b"\x00")}, "cannot be read"),
        ({"message": message(nodes.TensorRef("message", "numpy"))}, "which did not arrive"),
        ({"piece": as_array(b"\x00")}, "cannot be read"),
        ({"piece": piece(as_array(b"\x00"))}, "cannot be read"),
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
