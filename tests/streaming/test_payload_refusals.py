"""What cannot travel is refused by its path, and what nobody sent by what is wrong with it."""

import dataclasses
import random
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass
from enum import Flag, IntEnum
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from payloads import REGISTRY, Colour, Point, assert_same, through

from flstream.client.fl_model import FLModel
from flstream.errors import PayloadError
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry, default_registry
from flstream.streaming.payload import pack, pack_native, unpack


def test_a_value_is_built_by_its_own_class_which_checks_it():
    packed = pack(FLModel(), registry=REGISTRY)
    forged = msgspec.msgpack.decode(packed.message)
    forged[1][forged[1].index(["d", "ParamsType"])] = None
    forged[1].remove("FULL")
    with pytest.raises(PayloadError, match="payload cannot be made: params_type is None"):
        unpack(msgspec.msgpack.encode(forged), {}, registry=REGISTRY)
    elsewhere = Registry()
    other = elsewhere.register_dataclass(Colourless, "FLModel")
    with pytest.raises(PayloadError, match=r"cannot be made: its fields are not \['current_round'"):
        unpack(pack(other(), registry=elsewhere).message, {}, registry=REGISTRY)


@dataclass
class Colourless:
    hue: None = None


Pair = namedtuple("Pair", "a b")
Mixed = Flag("Mixed", "A B")
Level = IntEnum("Level", "LOW")
REGISTRY.register_enum(Mixed)


class Built(Pair):
    __slots__ = ()

    def __new__(cls, text: str):
        return super().__new__(cls, *text.split("/"))


class Text(str):
    __slots__ = ()


class Version(tuple[int, ...]):
    __slots__ = ()

    def __new__(cls, *numbers: int):
        return super().__new__(cls, numbers)


class Wrapped(torch.Tensor):
    pass


def cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def quantised() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch means to give them up
        return torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "is a object, which cannot be sent; register a decomposer for it or leave it"),
        ({1: {"a", frozenset({int})}}, r"\[1\]\[0\]\[0\] is a type, which cannot be sent"),
        (lambda: None, "is a function, which cannot be sent"),
        (Level.LOW, "is a Level, which cannot be sent; register its type with register_enum"),
        (Colourless(), "is a Colourless, .* register its class with register_dataclass"),
        (
            Pair(1, 2),
            "is a Pair, which cannot be sent; register its class with register_namedtuple",
        ),
        (Version(3), "is a Version, which cannot be sent; convert it to the tuple that it extends"),
        (defaultdict(int), "is a defaultdict, .* convert it to the dict that it extends"),
        (Counter(), "is a Counter, which cannot be sent; convert it to the dict"),
        (Text("x"), "is a Text, which cannot be sent; convert it to the str"),
        (np.ma.masked_array([1]), "is a MaskedArray, .* convert it to the ndarray"),
        (torch.zeros(1).as_subclass(Wrapped), "is a Wrapped, which cannot be sent"),
        (Mixed.A | Mixed.B, "is a Mixed that cannot be taken apart: it combines several flags"),
        ({(1, 2): 3}, "has a key that is a tuple; make it a str"),
        ({True: 3}, "has a key that is a bool; make it a str"),
        ({2**64: 3}, "has a key that is a int of more than 64 bits; make it a str"),
        ("\ud800", "has text that is no Unicode"),
        (cyclic(), r'\[0\]\["again"\] contains itself'),
        (np.array([None]), "has dtype object, which cannot be streamed"),
        (np.zeros(2, ">f4"), "has dtype >f4, which cannot be streamed"),
        (np.clongdouble(1), r"has dtype complex\d+, which cannot be streamed"),
        (np.datetime64("2024-01-01"), "has dtype datetime64"),
        (torch.zeros(2, 2).to_sparse(), "is torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "on meta"),
        (quantised(), "qint8"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_path(value, sentence):
    place = r'payload\["a"\]\[3\]\.x'
    wrapped = {"a": [torch.zeros(1), 0, 0, Point(value)]}
    for road in (pack, pack_native):
        with pytest.raises(PayloadError, match=f"{place}.*{sentence}"):
            road(wrapped, registry=REGISTRY)


def test_a_list_that_is_met_twice_is_no_cycle():
    once = [1, torch.zeros(1)]
    assert_same(through([once, {"a": once}]), [once, {"a": once}])


def test_the_depth_that_is_sent_is_the_depth_that_is_received():
    assert_same(through(nested(nodes.MAX_DEPTH)), nested(nodes.MAX_DEPTH))
    with pytest.raises(PayloadError, match=r"payload(\[0\]){64} is nested more than 64 deep"):
        pack(nested(nodes.MAX_DEPTH + 1))
    assert_same(unpack(message(*deep(64)), {}), nested(64))
    with pytest.raises(PayloadError, match="nested more than 64 deep"):
        unpack(message(*deep(65)), {})


def deep(depth: int) -> list[nodes.Node]:
    return [*[nodes.Container("list", 1)] * (depth - 1), nodes.Container("list", 0)]


def message(*content: nodes.Node) -> bytes:
    return msgspec.msgpack.encode([nodes.VERSION, content])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": bytes(nodes.MAX_MESSAGE_BYTES)}, r'payload\["a"\] makes the message longer than'),
        (["é" * nodes.MAX_MESSAGE_BYTES], r"payload\[0\] makes the message longer than"),
        ([[1e9] * (nodes.MAX_MESSAGE_BYTES // 9 + 1)], "payload makes the message longer than"),
        ([[0] * nodes.MAX_NODES], r"payload\[0\]\[1048574\] is more than 1048576 values"),
        (dict.fromkeys(range(nodes.MAX_INT_KEYS + 1)), "payload has more than 65536 int keys"),
        ([{1.5}, set(range(nodes.MAX_INT_KEYS))], r"payload\[1\] has more than 65536 int keys"),
    ],
)
def test_too_much_for_a_small_message_is_refused_by_its_path(value, sentence):
    with pytest.raises(PayloadError, match=sentence):
        pack(value)


# A point that is frozen, and holds a list.
POINT = (nodes.Container("dict", 3), "x", nodes.Container("list", 0), "y", 0, "norm", 5.0)


def big(number: int) -> nodes.BigInt:
    """An int of more than 64 bits, whose hash is that of all others that this gives."""
    value = 2**70 + number * sys.hash_info.modulus
    return nodes.BigInt(value.to_bytes(20, "little"))


def a_set(*content: nodes.Node) -> bytes:
    return message(nodes.Decomposed("set"), *content)


def a_size(dimension: nodes.Node) -> bytes:
    return message(nodes.Decomposed("torch.Size"), nodes.Container("list", 1), dimension)


def alike(number: int) -> list[nodes.Node]:
    """A complex number whose hash is that of all others that this gives."""
    real = float(-sys.hash_info.imag * number)
    return [nodes.Decomposed("complex"), nodes.Container("list", 2), real, float(number)]


TENSOR = nodes.TensorRef("w", "pytorch")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be read"),
        (b"\x92\x01\xdd\xff\xff\xff\xff", "length <= 1048576"),
        (b"\x91" * 100_000, "cannot be read"),
        (bytes(nodes.MAX_MESSAGE_BYTES + 1), "takes 8388609 bytes; 8388608 is most"),
        (msgspec.msgpack.encode([2, [None]]), "cannot be read"),
        (message(), "value 0 is the last, but the value goes on"),
        (message(None, None), "value 1 is the end of the value"),
        (message(nodes.Container("list", 2**63), 1), "value 2 is the last"),
        (message(nodes.Container("dict", 1), 1.5, 1), "value 2 is no key"),
        (message(nodes.Container("dict", 2), "a", 1, "a", 1), "its dict has already"),
        (
            message(
                nodes.Container("dict", 65_537), *[n for key in range(65_537) for n in (key, None)]
            ),
            "an int key too many",
        ),
        (a_set(None), "a set of a payload cannot be made: its elements are no list"),
        (a_set(nodes.Container("list", 2), 1, True), "cannot be made: it has an element twice"),
        (a_set(nodes.Container("list", 2**40), b"a"), "cannot be read|value 3"),
        (a_set(nodes.Container("list", 1), nodes.Container("list", 0)), "unhashable type: 'list'"),
        (a_set(nodes.Container("list", 1), TENSOR, 1), "is the end of the value"),
        (a_set(nodes.Container("list", 1), nodes.Decomposed("Point"), *POINT), "unhashable"),
        (
            a_set(nodes.Container("list", 65_537), *(n / 2 for n in range(65_537))),
            "or an element of a set; 65536 is most",
        ),
        (
            a_set(nodes.Container("list", 65), *(each for n in range(65) for each in alike(n))),
            "more than 64 of its elements have one hash",
        ),
        (a_set(nodes.Container("list", 65), *map(big, range(65))), "more than 64 of its elements"),
        (message(nodes.Decomposed("complex"), nodes.Container("list", 1), "i"), "cannot be made"),
        (message(nodes.Decomposed("torch.Size"), 5), "a torch.Size of a payload cannot be made"),
        (a_size("a"), "cannot be made: its dimensions are no ints of 64 bits"),
        (a_size(2**63), "its dimensions are no ints of 64 bits"),
        (
            message(nodes.Decomposed("Rung"), nodes.Container("dict", 1), "step", 1),
            r"its fields are not \['name', 'step'\]",
        ),
        (message(nodes.Decomposed("os.system"), "true"), "'os.system', which is not registered"),
        (message(nodes.Decomposed("Colour"), "GREEN"), "a Colour of a payload cannot be made"),
        (message(nodes.Decomposed("Colour"), nodes.Container("list", 0)), "cannot be made"),
        (message(nodes.Decomposed("Point"), None), "its fields are not"),
        (message(nodes.Decomposed("fraction"), nodes.BigInt(b"")), "cannot be made"),
        (message(nodes.Scalar("F32", b"abc")), "is no NumPy scalar"),
        (message(nodes.Scalar("BF16", b"ab")), "is no NumPy scalar"),
        (message(nodes.TensorRef("v", "pytorch")), "the tensor 'v', which did not arrive"),
        (message(nodes.TensorRef("w", "numpy")), "bfloat16, which NumPy does not have"),
        (message(None), "1 tensors came that the payload's message does not mention, such as 'w'"),
    ],
)
def test_a_malformed_message_is_refused_with_what_is_wrong(content, sentence):
    with pytest.raises(PayloadError, match=sentence):
        unpack(content, {"w": torch.zeros(2, dtype=torch.bfloat16)}, registry=REGISTRY)


def example() -> dict[str, Any]:
    return {
        "model": FLModel({"w": torch.zeros(2), "v": np.zeros(3)}, metrics={"loss": 0.5}),
        "list": [1, 2.5, None, True, "text", b"bytes", 2**80, Colour.RED, Fraction(1, 3)],
        3: (Point(np.float32(1)), OrderedDict(a=torch.zeros(()))),
    }


def test_junk_and_mutated_messages_end_in_payload_errors_only():
    packed = pack(example(), registry=REGISTRY)
    content = msgspec.msgpack.decode(packed.message)[1]
    rng = random.Random(3)
    tally: Counter[str] = Counter()

    def offer(kind: str, data: bytes) -> None:
        try:
            unpack(data, packed.tensors, registry=REGISTRY)
        except PayloadError:
            tally[f"{kind} refused"] += 1
        else:
            tally[f"{kind} read"] += 1

    for _ in range(2_000):
        offer("junk", b"\x92\x01" * rng.randrange(2) + rng.randbytes(rng.randrange(40)))
        damaged = bytearray(packed.message)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        offer("damaged", damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))])
        # What gets past the decoder: proper nodes in a wrong order, left out, or too many.
        shuffled = list(content)
        for _ in range(rng.randrange(1, 4)):
            shuffled[rng.randrange(len(shuffled))] = rng.choice(content)
            if rng.randrange(2):
                del shuffled[rng.randrange(len(shuffled))]
        offer("shuffled", msgspec.msgpack.encode([1, shuffled]))
    assert sum(tally.values()) == 6_000
    assert all(tally[f"{kind} refused"] > 250 for kind in ("junk", "damaged", "shuffled"))


def test_a_type_or_a_name_is_registered_once():
    registry = Registry()
    registry.register_dataclass(Point)
    for kind in (Point, int, dict, complex, set, torch.Size, np.ndarray, np.float32, torch.Tensor):
        with pytest.raises(PayloadError, match=f"{kind.__name__} can be sent already"):
            registry.register_enum(kind, "another")
    with pytest.raises(PayloadError, match="the name 'Point' stands for Point"):
        registry.register_enum(Colour, "Point")
    with pytest.raises(PayloadError, match="Colour is not a dataclass"):
        registry.register_dataclass(Colour)
    with pytest.raises(PayloadError, match="is not built from its fields alone"):
        registry.register_dataclass(dataclasses.make_dataclass("Odd", [("x", InitVar[int])]))
    with pytest.raises(PayloadError, match="Point is not a namedtuple"):
        registry.register_namedtuple(Point)
    with pytest.raises(PayloadError, match="Built is not built from its fields alone"):
        registry.register_namedtuple(Built)
    assert registry.register_namedtuple(Pair, "pair") is Pair
    with pytest.raises(PayloadError, match="Pair can be sent already"):
        registry.register_namedtuple(Pair)
    assert default_registry.named("Point") is None
