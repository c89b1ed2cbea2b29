"""The format of a payload's message, and its limits.

A message is ``[version, nodes]`` in msgpack. The nodes are in the order of a walk through the
value: a container is followed by its content, a key by its value. Types of msgpack (None, bool, int
of 64 bits, float, str) are themselves; every other type is one of the records below.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from flstream.model.memory import Framework

VERSION: Final = 1

MAX_MESSAGE_BYTES = 8 << 20
"""Most bytes of a message, without tensors: room for about 50,000 named tensors."""

MAX_NODES = 1 << 20
"""Most values, containers and keys in a message."""

MAX_DEPTH = 64
"""Most containers and decomposed values around a value."""

MAX_INT_KEYS = 1 << 16
"""Most int keys in a message, together with elements of sets that are neither str nor bytes.

Unlike that of a str, the hash of an int is predictable, so that a peer can choose keys that all
collide: a million of them keep a dict busy for minutes, and this many for half a second.
"""

MAX_ALIKE = 64
"""Most elements of a set with one hash.

A peer can choose complex numbers or tuples that all have one. Each would be compared with all
before it, perhaps by a method of a registered type. Powers of two come to 34.
"""

INT64 = range(-(2**63), 2**64)
"""Ints that msgpack supports, and that may be keys."""


class Container(msgspec.Struct, tag="c", array_like=True, forbid_unknown_fields=True, frozen=True):
    """A container of the next ``size`` values; in a dict, each after its key."""

    kind: Literal["list", "tuple", "dict", "odict"]
    size: Annotated[int, msgspec.Meta(ge=0)]


class Decomposed(msgspec.Struct, tag="d", array_like=True, forbid_unknown_fields=True, frozen=True):
    """The next value, to be recomposed by the decomposer that is registered as ``name``."""

    name: str


class TensorRef(msgspec.Struct, tag="t", array_like=True, forbid_unknown_fields=True, frozen=True):
    """A tensor of the body, by name. A name that occurs twice stands for one object."""

    name: str
    framework: Framework


class Scalar(msgspec.Struct, tag="s", array_like=True, forbid_unknown_fields=True, frozen=True):
    """A NumPy scalar: the code of its dtype in a safetensors header, and its bytes."""

    dtype: str
    data: bytes


class BigInt(msgspec.Struct, tag="i", array_like=True, forbid_unknown_fields=True, frozen=True):
    """An int of more than 64 bits: two's complement, lowest byte first."""

    digits: bytes


class Blob(msgspec.Struct, tag="b", array_like=True, forbid_unknown_fields=True, frozen=True):
    """Bytes; in a record, since a union of msgspec takes either text or bytes."""

    data: bytes


Plain = None | bool | int | float | str
Node = Plain | Container | Decomposed | TensorRef | Scalar | BigInt | Blob


class Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The whole message of one payload."""

    version: Literal[1]
    nodes: Annotated[list[Node], msgspec.Meta(max_length=MAX_NODES)]


class Native(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A payload in one piece: its message, and each tensor as the safetensors library saves it."""

    message: bytes
    tensors: Annotated[dict[str, bytes], msgspec.Meta(max_length=MAX_NODES)]
