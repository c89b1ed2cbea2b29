"""Payloads: any structure comes back as it was, and what cannot travel is refused by its path."""

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from harness import QUICK
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext
from support import as_bytes, tensor

from flstream.client.fl_model import FLModel
from flstream.errors import LayoutError, PayloadError
from flstream.model.copy import copy
from flstream.model.dtypes import BY_CODE, numpy_dtype
from flstream.model.memory import MemoryBody
from flstream.streaming import Decomposer, Registry, default_registry, payload
from flstream.streaming.api import add_payload, download_payload
from flstream.streaming.payload import MAX_BYTES, MAX_DEPTH, NODE_BYTES, pack, payload_body, unpack


@default_registry.register_enum
class Colour(Enum):
    RED = 1
    BLUE = "b"


@default_registry.register_dataclass
@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0


class Rung(NamedTuple):
    step: Any
    name: Any = "rung"


class Named(NamedTuple):
    x: int


Mixed = Flag("Mixed", "A B")
default_registry.register(
    Decomposer("fraction", Fraction, Fraction.as_integer_ratio, lambda parts: Fraction(*parts))
)
default_registry.register_dataclass(Rung)
default_registry.register_enum(Mixed)
default_registry.register_dataclass(Named, "of a long name" * 6)


def through(value: object) -> Any:
    """A value as a receiver has it once the bytes of its tensors are copied."""
    message, sent = pack(value)
    source = MemoryBody.of(sent)
    sink = MemoryBody.allocate(source.layout)
    copy(source, sink)
    return unpack(message, sink.tensors)


def shown(value: Any) -> object:
    """What is equal for values of the same types, structure, order and bits alone."""
    content = value
    if isinstance(value, torch.Tensor):
        content = value.dtype, value.shape, as_bytes(value)
    elif isinstance(value, np.ndarray | np.generic):
        content = value.dtype, value.shape, value.tobytes()
    elif isinstance(value, float | complex):
        content = np.asarray(value).tobytes()
    elif isinstance(value, list | tuple):
        content = [shown(item) for item in value]
    elif isinstance(value, dict):
        content = [(shown(key), shown(item)) for key, item in value.items()]
    elif isinstance(value, set | frozenset):
        content = {(type(element), element) for element in value}
    elif dataclasses.is_dataclass(value):
        content = shown(vars(value))
    return type(value), content


NUMPY_CODES = tuple(code for code, dtype in BY_CODE.items() if dtype.numpy_name)
numbers = st.integers(-(2**200), 2**200)
text = st.text(st.characters(codec="utf-8"), max_size=8)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(tensor, st.sampled_from(tuple(BY_CODE)), shapes, st.integers(0, 99))
arrays = st.builds(
    lambda code, shape, seed: np.asarray(tensor(code, shape, seed).numpy()),
    st.sampled_from(NUMPY_CODES),
    shapes,
    st.integers(0, 99),
)
scalars = st.builds(
    lambda code, data: np.frombuffer(data[: BY_CODE[code].itemsize], numpy_dtype(code, "s"))[0],
    st.sampled_from(NUMPY_CODES[:-1]),
    st.binary(min_size=16, max_size=16),
)
others = st.sampled_from([None, True, np.True_, *Colour, Mixed.A])
equals = others | numbers | st.floats(allow_nan=False) | text | st.binary() | st.fractions()
elements = st.recursive(
    equals | st.complex_numbers(allow_nan=False),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Rung, inner, inner),
    ),
    max_leaves=5,
)
"""What a set can hold, but for what does not equal itself."""
sizes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(torch.Size)
payloads = st.recursive(
    equals | st.floats() | st.complex_numbers() | tensors | arrays | scalars | sizes,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(text | numbers, inner, max_size=4),
        st.dictionaries(text, inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Rung, inner, inner),
        st.sets(elements, max_size=4),
        st.frozensets(elements, max_size=4),
    ),
    max_leaves=12,
)


@given(payloads)
def test_any_structure_comes_back_with_its_types_order_and_bits(value):
    assert shown(through(value)) == shown(value)


def test_a_tensor_is_named_by_its_path_and_if_met_twice_travels_once_and_is_one_again():
    tied, array, empty = torch.arange(6.0).reshape(2, 3), np.arange(3), torch.zeros(0)
    value = [tied, tied.detach(), array, array, empty, empty, tied.t(), tied[0], tied.to(int)]
    arrived = through(value)
    assert shown(arrived) == shown(value)
    assert all(arrived[place] is arrived[place + 1] for place in (0, 2, 4))
    assert len(payload_body(value[:6]).layout.tensors) == 4  # with the message
    one, two, three = (torch.zeros(1) for _ in range(3))
    value = {"a": {"b": one}, 'a"]["b': [two], 3: Point(three)}
    names = ['payload["a"]["b"]', 'payload["a\\"][\\"b"][0]', 'payload[3]["x"]']
    assert list(pack(value)[1]) == names
    assert list(pack(one)[1]) == ["payload"]


def test_values_arrive_as_what_they_show():
    square, number = torch.arange(9.0).reshape(3, 3), torch.tensor([1 + 2j])
    once = [1, torch.zeros(1)]
    for value, due in (
        (torch.nn.Parameter(square), square),
        (square.t(), square.t().contiguous()),
        (np.arange(12)[::-3], np.array([11, 8, 5, 2])),
        # They share their memory, and show something else.
        ([number, number.conj()], [number, number.conj().resolve_conj()]),
        *((same, same) for same in (torch.nn.Linear(3, 3).state_dict(), [once, {"a": once}])),
    ):
        assert shown(through(value)) == shown(due)


Pair = namedtuple("Pair", "a b")


class Built(Pair):
    __slots__ = ()

    def __new__(cls, text: str):
        return super().__new__(cls, *text.split("/"))


class Own(np.float32):
    __slots__ = ()


class Wrapped(torch.Tensor):
    pass


def test_a_type_or_a_name_is_registered_once():
    registry = Registry()
    assert registry.register_dataclass(Pair, "pair") is Pair
    for kind in (Pair, int, dict, complex, set, torch.Size, np.ndarray, np.float32, torch.Tensor):
        with pytest.raises(PayloadError, match=f"{kind.__name__} can be sent already"):
            registry.register_enum(kind, "another")
    with pytest.raises(PayloadError, match="'pair' stands for another type"):
        registry.register_enum(Colour, "pair")
    more = dataclasses.make_dataclass("More", [("x", InitVar[int])])
    less = dataclasses.make_dataclass("Less", [("x", int, field(init=False))])
    for kind in (Colour, more, less, Built):
        with pytest.raises(
            PayloadError, match=f"{kind.__name__} is not built from just its fields"
        ):
            registry.register_dataclass(kind)
    assert default_registry.find(Pair) is None


# What cannot be sent.
MOST = 1 << 16
CYCLE: list[Any] = [{}]
CYCLE[0]["again"] = CYCLE


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else None


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), ": values of type object cannot be sent; convert them, leave them out, or reg"),
        ([Mixed.A | Mixed.B], r"\[0\]: it combines several flags"),
        ([{"b": Pair(1, 2)}], r'\[0\]\["b"\]: values of type Pair cannot be sent'),
        (defaultdict(int), ": values of type defaultdict cannot be sent"),
        (torch.zeros(1).as_subclass(Wrapped), ": values of type Wrapped cannot be sent"),
        (Own(1), ": values of type Own cannot be sent"),
        ({True: 3}, ": it has a key that is neither a str nor an int"),
        (["\ud800"], r"\[0\]: .*surrogates not allowed"),
        (CYCLE, r'(\[0\]\["again"\])+.*: it is nested more than 64 deep, or contains itself'),
        (np.array([None]), "' has dtype object, which cannot be streamed"),
        (torch.zeros(2, 2).to_sparse(), "' is torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "' .*on meta"),
        (["é" * (MOST // 2)], rf"\[0\]: it is too much for a message of {MOST} bytes"),
        ([0] * (MOST // NODE_BYTES), r"\[72\d\d\]: it is too much for a message of"),
        ([Named(0)] * (MOST // 90), r"\[5\d\d\]: it is too much for a message of"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_path(monkeypatch, value, sentence):
    monkeypatch.setattr(payload, "MAX_BYTES", MOST)
    place = r'payload\["a"\]\[3\]\["x"\]'
    with pytest.raises(PayloadError, match=f"{place}{sentence}"):
        payload_body({"a": [torch.zeros(1), 0, 0, Point(value)]})


def test_the_depth_that_is_sent_is_the_depth_that_is_received():
    assert shown(through(nested(MAX_DEPTH))) == shown(nested(MAX_DEPTH))
    with pytest.raises(PayloadError, match=r"payload(\[0\]){64}: it is nested more than 64 deep"):
        pack(nested(MAX_DEPTH + 1))
    with pytest.raises(PayloadError, match=r"payload(\[0\]){64}: it is nested more than 64 deep"):
        unpack(message(*[of(LIST, 1)] * (MAX_DEPTH + 1), None), {})
    with pytest.raises(PayloadError, match="payload: it is nested more than 64 deep"):
        unpack(message(*[Ext(TYPE, b"int")] * (MAX_DEPTH + 1), None), {})


# What nobody sent.
LIST, TUPLE, SET, FROZENSET, DICT, ODICT, BYTES, ARRAY, TENSOR, TYPE = range(10)


def message(*content: object) -> bytes:
    return msgspec.msgpack.encode(content)


def of(code: int, size: int) -> Ext:
    return Ext(code, size.to_bytes(8, "little"))


def typed(name: str, *content: object) -> bytes:
    return message(Ext(TYPE, name.encode()), *content)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xdd\xff\xff\xff\xff", "payload: .*length <= 932067"),
        (b"\x91" * 100_000, "payload: "),
        (message({"a": 1}), "payload: Expected"),
        (message(), "payload: the message has no more nodes"),
        (message(None, None), "payload: the message goes on"),
        (message(of(LIST, 1), Ext(SET, b"\xff" * 99), 1), r"payload\[0\]\[1\]: the message has no"),
        (message(of(DICT, 1), of(LIST, 0), 1), "payload: it has a key that is neither"),
        (message(of(SET, 1), of(LIST, 0)), "payload: unhashable type: 'list'"),
        (message(Ext(77, b"")), "payload: b'' is no type that is registered here"),
        (typed("os.system", "true"), "os.system' is no type that is registered here"),
        (typed("complex", of(LIST, 1), "i"), "payload: .*complex"),
        (typed("torch.Size", Ext(BYTES, b"abc")), "payload: buffer size"),
        (typed("scalar", of(LIST, 2), "O", Ext(BYTES, bytes(8))), "payload: 'O'"),
        (typed("Rung", of(DICT, 1), "name", 1), "payload: .*missing 1 .*argument: 'step'"),
        (typed("Rung", of(DICT, 1), 7, 1), "payload: .*keywords must be strings"),
        (typed("Point", None), "payload: .* must be a mapping"),
        (typed("Colour", "GREEN"), "payload: 'GREEN'"),
        (typed("fraction", None), "payload: "),
        (message(Ext(TENSOR, b"v")), "payload: the tensor 'v' did not arrive"),
        (message(Ext(TENSOR, b"\xff")), "payload: .*can't decode"),
    ],
)
def test_a_malformed_message_is_refused_with_what_is_wrong(content, sentence):
    with pytest.raises(PayloadError, match=sentence):
        unpack(content, {"w": torch.zeros(2)})


MIXED = {
    "model": FLModel({"w": torch.zeros(2), "v": np.zeros(3)}, metrics={"loss": 0.5}),
    "list": [1, 2.5, None, True, "text", b"bytes", 2**80, Colour.RED, Fraction(1, 3), {1, "2"}],
    3: (Point(np.float32(1)), OrderedDict(a=torch.zeros(()))),
}
SENT, KNOWN = pack(MIXED)
NODES = msgspec.msgpack.decode(SENT)
damage = st.builds(
    lambda at, data, stop: (SENT[:at] + data + SENT[at + len(data) :])[:stop],
    st.integers(0, len(SENT) - 1),
    st.binary(min_size=1, max_size=3),
    st.none() | st.integers(0, len(SENT)),
)
# What gets past the decoder: proper nodes in a wrong order, left out, or too many.
shuffles = st.builds(
    lambda at, nodes, stop: message(*NODES[:at], *nodes, *NODES[stop:]),
    *(st.integers(0, len(NODES)), st.lists(st.sampled_from(NODES), max_size=4)),
    st.integers(0, len(NODES)),
)


@settings(max_examples=1000)
@given(st.binary(max_size=40) | damage | shuffles)
def test_junk_and_mutated_messages_end_in_payload_errors_only(data):
    with suppress(PayloadError):
        unpack(data, KNOWN)


# Under one ref.
@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
def test_whatever_allocates_tensors_and_arrays_are_what_they_were(harness, framework):
    value = {code: (tensor(code, (3,)), tensor(code, (4,)).numpy()) for code in NUMPY_CODES}
    value["tied"] = [value["F32"][0], value["F32"][0].numpy()]
    told: dict[str, Any] = {}

    def on_tensors(tensors):
        assert not told.keys() & tensors.keys()
        told.update(tensors)

    ref = add_payload(harness.service, value, ["site-1"])
    how = {"settings": QUICK, "framework": framework, "on_tensors": on_tensors}
    status, arrived = download_payload(harness.receiver(), ref.id, **how)
    assert status.ok
    assert ref.wait(30).ok
    assert shown(arrived) == shown(value)
    assert len(told) == 2 * len(NUMPY_CODES)
    kind = torch.Tensor if framework == "pytorch" else np.ndarray
    assert {type(value) for value in told.values()} == {kind}
    told['payload["F32"][0]'][0] = 55
    assert arrived["F32"][0] is arrived["tied"][0]
    assert arrived["F32"][0][0] == arrived["tied"][1][0] == 55  # over the same memory


@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_module_receives_into_its_parameters_and_the_rest_gets_new_memory(harness, chunk_size):
    theirs, ours = torch.nn.Linear(70, 30), torch.nn.Linear(70, 30)
    array = np.zeros(5, np.int64)
    value = {"net": theirs.state_dict(), "more": [np.arange(5), tensor("F32", (9,))], "round": 3}
    into = {"net": ours.state_dict(), "more": (array,)}
    how = replace(QUICK, chunk_size=chunk_size)
    ref = add_payload(harness.service, value, ["site-1"])
    arrived = download_payload(harness.receiver(), ref.token, settings=how, into=into)[1]
    assert shown(arrived) == shown(value)
    assert torch.equal(ours.weight, theirs.weight)
    assert arrived["net"]["weight"].data_ptr() == ours.weight.data_ptr()
    assert arrived["more"][0] is array


def debt(payload: torch.Tensor) -> Decimal:
    raise RuntimeError(f"no debts of {payload.sum()}")


DEBTS = {"name": "sum", "supported_type": Decimal, "recompose": debt}
# Any object with a decomposer's attributes is one.
owed = SimpleNamespace(**DEBTS, decompose=lambda it: torch.full((5000,), float(it)))
default_registry.register(owed)
SAME = np.zeros(4, np.float32)
ITSELF = np.frombuffer(message(Ext(ARRAY, b"message")), np.uint8)


@pytest.mark.parametrize(
    ("error", "sentence", "sent", "into"),
    [
        (LayoutError, r"' has shape \[5\] instead of \[4\]", [SAME], [torch.zeros(5)]),
        (LayoutError, r"""'payload\[0\]' is not part of the model""", [], [torch.zeros(4)]),
        (LayoutError, r"""'payload\[0\]' is not contiguous""", [SAME], [torch.zeros(8)[::2]]),
        # Two tensors cannot be received into one memory.
        (LayoutError, r"""'payload\[1\]'""", [SAME, SAME + 1], [SAME, torch.from_numpy(SAME)]),
        (PayloadError, r"payload\[0\]: no debts of 10000", [Decimal(2)], None),
        (PayloadError, "is no payload: it lacks a message", {"w": torch.zeros(2)}, None),
        (PayloadError, "it lacks a message", {"message": torch.zeros(9)}, None),
        (PayloadError, "it lacks a message", {"message": np.zeros(0, np.uint8)}, None),
        (PayloadError, "of 1 to 8388608 b", {"message": np.zeros(MAX_BYTES + 1, np.uint8)}, None),
        (PayloadError, "payload: Expected", {"message": np.zeros(3, np.uint8)}, None),
        (PayloadError, "'message' did not", {"message": ITSELF}, None),
    ],
)
def test_of_what_cannot_be_received_the_sender_hears_why(harness, error, sentence, sent, into):
    body = MemoryBody.of(sent) if isinstance(sent, dict) else payload_body(sent)
    ref, receiver = harness.service.offer(body, ["site-1"]), harness.receiver()
    with pytest.raises(error, match=sentence):
        download_payload(receiver, ref.token, into=into, settings=QUICK)
    assert ref.wait(30).status == "aborted"
    # The channel serves on.
    ref = add_payload(harness.service, [1], ["site-1"])
    assert download_payload(receiver, ref.id, settings=QUICK)[1] == [1]
