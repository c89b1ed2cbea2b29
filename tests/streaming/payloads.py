"""Types that payloads may hold, payloads of every kind, and how a value arrives."""

import dataclasses
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from support import as_bytes, tensor

from flstream.client.fl_model import FLModel, ParamsType
from flstream.model.copy import copy
from flstream.model.dtypes import BY_CODE, numpy_dtype
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.streaming.decomposers import Registry
from flstream.streaming.payload import pack, pack_native, unpack, unpack_native

REGISTRY = Registry()


@REGISTRY.register_enum
class Colour(Enum):
    RED = 1
    BLUE = "b"


@REGISTRY.register_dataclass
@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0
    norm: float = field(init=False, default=0.0)

    def __post_init__(self):
        object.__setattr__(self, "norm", 5.0)


class FractionDecomposer:
    name = "fraction"
    supported_type = Fraction

    def decompose(self, value: Fraction) -> object:
        return value.numerator, value.denominator

    def recompose(self, payload: Any) -> Fraction:
        return Fraction(*payload)


class Rung(NamedTuple):
    step: Any
    name: Any = "rung"


REGISTRY.register(FractionDecomposer())
REGISTRY.register_namedtuple(Rung)
REGISTRY.register_enum(ParamsType)
REGISTRY.register_dataclass(FLModel)


def delivered(tensors: Params, framework: Framework = "pytorch") -> Params:
    """What a receiver has once the bytes of the tensors are copied."""
    source = MemoryBody.of(tensors)
    sink = MemoryBody.allocate(source.layout, framework)
    copy(source, sink)
    return sink.tensors


def through(value: object) -> Any:
    """A value as it arrives over the byte range, which is as it arrives in one piece."""
    packed = pack(value, registry=REGISTRY)
    arrived = unpack(packed.message, delivered(packed.tensors), registry=REGISTRY)
    assert_same(unpack_native(pack_native(value, registry=REGISTRY), registry=REGISTRY), arrived)
    return arrived


def assert_same(given: Any, due: Any) -> None:
    """The same types, structure and bits."""
    assert type(given) is type(due)
    if isinstance(due, torch.Tensor):
        assert (given.dtype, given.shape) == (due.dtype, due.shape)
        assert as_bytes(given) == as_bytes(due)
    elif isinstance(due, np.ndarray | np.generic):
        assert (given.dtype, given.shape) == (due.dtype, due.shape)
        assert given.tobytes() == due.tobytes()
    elif isinstance(due, list | tuple):
        assert len(given) == len(due)
        for left, right in zip(given, due, strict=True):
            assert_same(left, right)
    elif isinstance(due, dict):
        assert_same(list(given), list(due))  # in their order
        assert_same(list(given.values()), list(due.values()))
    elif dataclasses.is_dataclass(due):
        assert_same(vars(given), vars(due))
    elif isinstance(due, complex):
        assert_same([given.real, given.imag], [due.real, due.imag])
    elif isinstance(due, set | frozenset):
        assert {(type(each), each) for each in given} == {(type(each), each) for each in due}
    elif isinstance(due, float):
        assert struct.pack("<d", given) == struct.pack("<d", due)
    else:
        assert given == due


CODES = tuple(BY_CODE)
NUMPY_CODES = tuple(code for code, dtype in BY_CODE.items() if dtype.numpy_name)

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(tensor, st.sampled_from(CODES), shapes, st.integers(0, 99))
arrays = st.builds(
    lambda code, shape, seed: np.asarray(tensor(code, shape, seed).numpy()),
    st.sampled_from(NUMPY_CODES),
    shapes,
    st.integers(0, 99),
)
scalars = st.builds(
    lambda code, data: np.frombuffer(data[: BY_CODE[code].itemsize], numpy_dtype(code, "s"))[0],
    st.sampled_from([code for code in NUMPY_CODES if code != "BOOL"]),
    st.binary(min_size=16, max_size=16),
)
text = st.text(st.characters(codec="utf-8"), max_size=8)
int64s = st.integers(-(2**63), 2**64 - 1)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.complex_numbers(),
    text,
    st.binary(max_size=8),
    tensors,
    arrays,
    scalars,
    st.sampled_from([np.True_, np.False_, *Colour]),
    st.fractions(),
    st.lists(int64s, max_size=3)
    .filter(lambda sizes: all(size < 2**63 for size in sizes))
    .map(torch.Size),
)
elements = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**80), 2**80),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        text,
        st.binary(max_size=4),
        st.sampled_from([*Colour]),
        st.fractions(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Rung, inner, inner),
    ),
    max_leaves=5,
)
"""What a set can hold, but for what does not equal itself."""
payloads = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(text | int64s, inner, max_size=4),
        st.dictionaries(text, inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Rung, inner, inner),
        st.sets(elements, max_size=4),
        st.frozensets(elements, max_size=4),
    ),
    max_leaves=12,
)
