"""Payloads: nested structures as named tensors and one small message.

The message is a list of nodes in msgpack, in the order of a walk through the value, as described
in docs/internals/protocol.md. Nothing in it is unpickled, imported or called by its name: a
receiver looks names up among the types that it registered itself. After NVFlare's FOBS and
``TensorDecomposer``.
"""

from __future__ import annotations

import inspect
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from flstream.errors import LayoutError, PayloadError
from flstream.model.dtypes import code_of, numpy_dtype
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, Params

MAX_BYTES = 8 << 20  # of a message: room for about 50,000 named tensors
NODE_BYTES = 9  # of the longest node, without its text or data; a sender counts so many for each
MAX_DEPTH = 64

TypeT = TypeVar("TypeT", bound=type)
_Nodes = list[bool | int | float | str | Ext | None]
_LIMIT = msgspec.Meta(max_length=MAX_BYTES // NODE_BYTES)
_decoder = msgspec.msgpack.Decoder(Annotated[_Nodes, _LIMIT])
_INT64 = range(-(2**63), 2**64)
_PLAIN = (type(None), bool, int, float, str)
_CONTAINERS = (list, tuple, set, frozenset, dict, OrderedDict)
_DICTS = _CONTAINERS[4:]
# Codes of msgpack's Ext.
_CODES = {kind: code for code, kind in enumerate((*_CONTAINERS, bytes, np.ndarray))}
_BYTES, _ARRAY, _TENSOR, _TYPE = range(6, 10)
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")


@dataclass
class Decomposer:
    """Converter of a type's values for payloads, as NVFlare's FOBS decomposers are.

    Attributes:
        name: Name that stands for the type in a message; the same on both sides.
        supported_type: The type itself. Its subclasses are other types.
        decompose: Returns a value as any payload; tensors in it are streamed as all others.
        recompose: Rebuilds a value from a payload, which is not trusted: it may have any structure.
    """

    name: str
    supported_type: type
    decompose: Callable[[Any], object]
    recompose: Callable[[Any], object]


_BUILT_IN = (
    Decomposer("int", int, hex, lambda text: int(text, 16)),  # of more than 64 bits
    Decomposer("complex", complex, lambda it: (it.real, it.imag), lambda parts: complex(*parts)),
    Decomposer(
        "scalar",
        np.generic,
        lambda it: (code_of(np.asarray(it), type(it).__name__), it.tobytes()),
        lambda parts: np.frombuffer(parts[1], numpy_dtype(parts[0], "scalar"))[0],
    ),
    Decomposer(
        "torch.Size",
        tuple,
        lambda it: np.asarray(it, "<i8").tobytes(),
        lambda data: import_module("torch").Size(np.frombuffer(data, "<i8").tolist()),
    ),
)


class Registry:
    """Further types that payloads may hold, by type and by name in messages."""

    def __init__(self) -> None:
        self._by_type: dict[type, Decomposer] = {int: _BUILT_IN[0], complex: _BUILT_IN[1]}
        self.by_name = {decomposer.name: decomposer for decomposer in _BUILT_IN}

    def register(self, decomposer: Decomposer) -> None:
        """Allow values of ``supported_type`` in payloads, by a decomposer.

        Raises:
            PayloadError: The type is allowed already, or the name is taken.
        """
        name, kind = decomposer.name, decomposer.supported_type
        if kind in _PLAIN or _code_of(kind) is not None or self.find(kind) or name in self.by_name:
            raise PayloadError(
                f"{kind.__qualname__} can be sent already, or {name!r} stands for another type; "
                "register a type once, under a name of its own"
            )
        self._by_type[kind] = self.by_name[name] = decomposer

    def register_dataclass(self, cls: TypeT, name: str | None = None) -> TypeT:
        """Allow a dataclass or namedtuple, field by field; usable as a decorator.

        An arriving value is built by the class itself, so its ``__post_init__`` is the place to
        check fields that are not trusted. Attributes that are not fields are not sent.

        Args:
            cls: The class.
            name: Name in messages; the name of the class if None.

        Raises:
            PayloadError: The class takes other arguments than its fields, such as an ``InitVar``,
                or not all of them; or see :meth:`register`.
        """
        names = getattr(cls, "_fields", None)
        if is_dataclass(cls):
            names = [field.name for field in fields(cls)]
        if names is None or inspect.signature(cls).parameters.keys() != set(names):
            raise PayloadError(
                f"{cls.__qualname__} is not built from just its fields; register a Decomposer"
            )

        def decompose(value: object) -> object:
            return {name: getattr(value, name) for name in names}

        self.register(Decomposer(name or cls.__name__, cls, decompose, lambda it: cls(**it)))
        return cls

    def register_enum(self, cls: TypeT, name: str | None = None) -> TypeT:
        """Allow members of an enum, by their names: see :meth:`register_dataclass`."""
        members: Any = getattr(cls, "__members__", {})

        def decompose(member: Any) -> object:
            if member.name not in members:
                raise ValueError("it combines several flags; send the number instead")
            return member.name

        self.register(Decomposer(name or cls.__name__, cls, decompose, members.__getitem__))
        return cls

    def find(self, kind: type) -> Decomposer | None:
        """Return the decomposer of exactly this type, or None."""
        if kind.__module__ == "numpy" and issubclass(kind, np.number | np.bool_):
            return self.by_name["scalar"]
        if (kind.__module__, kind.__name__) == ("torch", "Size"):
            return self.by_name["torch.Size"]
        return self._by_type.get(kind)


default_registry = Registry()
"""The registry of this process. Whoever defines a type for payloads registers it here."""


def pack(value: object) -> tuple[bytes, dict[str, Any]]:
    """Split a value into a message and tensors, without copying or reading tensors.

    Returns:
        The message; and tensors and arrays by the path to their first place, such as
        ``payload["a"][3]["lr"]``. A field of a dataclass is a key of text.

    Raises:
        PayloadError: A part cannot be sent; the error names the path to it and what to do.
    """
    walk = _Walk({})
    try:
        walk.add(value)
    except Exception as error:  # a decomposer is the user's code
        raise PayloadError(f"{walk.place}: {error}") from error
    return msgspec.msgpack.encode(walk.nodes), walk.tensors


def unpack(message: bytes | memoryview, tensors: Params) -> Any:
    """Rebuild a value from an untrusted message of :func:`pack`.

    A tensor becomes an array, and an array a tensor, over the same memory, if that was sent.

    Raises:
        PayloadError: The message is malformed, or refers to a tensor or a type that is not there,
            or a type cannot be made of its content; the error names the path.
    """
    walk = _Walk(tensors)
    try:
        walk.nodes = _decoder.decode(message)[::-1]
        value = walk.take()
        if walk.nodes:
            raise ValueError("the message goes on after its end")
    except Exception as error:  # likewise, and nothing that arrives is trusted
        raise PayloadError(f"{walk.place}: {error}") from error
    return value


def payload_body(value: object) -> MemoryBody:
    """Make the body of a payload's tensors, over their storage, and its message."""
    message, tensors = pack(value)
    try:
        return MemoryBody.of({**tensors, "message": np.frombuffer(message, np.uint8)})
    except LayoutError as error:
        raise PayloadError(str(error)) from error


def payload_memory(layout: Layout, into: Params, framework: Framework, peer: str) -> MemoryBody:
    """Make memory for a payload's body, in the tensors of ``into`` where they exist."""
    spec = layout.by_name.get("message")
    if spec is None or spec.dtype != "U8" or not 0 < spec.nbytes <= MAX_BYTES:
        raise PayloadError(
            f"what {peer} offers is no payload: it lacks a message of 1 to {MAX_BYTES} bytes; "
            "download it as tensors"
        )
    targets = MemoryBody.over(into)
    if difference := layout.subset(into, into).difference(targets.layout):
        raise LayoutError(f"the payload that {peer} offers does not fit: {difference}")
    others = layout.subset(layout.by_name.keys() - into.keys())
    tensors = {**MemoryBody.allocate(others, framework).tensors, **targets.tensors}
    tensors |= {alias: tensors[name] for alias, name in layout.aliases.items()}
    body = MemoryBody(layout, tensors)
    del body.tensors["message"]  # no caller is to be told of it
    return body


def _code_of(kind: type) -> int | None:
    """Return the code of a built-in type, also of torch's if torch is imported."""
    is_tensor = f"{kind.__module__}.{kind.__name__}" in _TENSORS
    return _TENSOR if is_tensor else _CODES.get(kind)


class _Walk:
    """Walk through a value to send, or through received nodes."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors
        self.nodes: list[Any] = []
        self.path: list[object] = []  # keys and indices, and steps of no name
        self.room = MAX_BYTES
        self.seen: dict[object, Any] = {}  # tensors by name and code, or names by the tensor's id

    @property
    def place(self) -> str:
        """The path of the walk's present or last place."""
        named = (step for step in self.path if type(step) in (str, int))
        return "payload" + "".join(f"[{json.dumps(step, ensure_ascii=False)}]" for step in named)

    def inside(self, step: object, walk: Callable[..., Any], *what: Any) -> Any:
        if len(self.path) == MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep, or contains itself")
        self.path.append(step)
        value = walk(*what)
        self.path.pop()
        return value

    def add(self, value: Any) -> None:
        """Append the nodes of a value."""
        kind = type(value)
        code = None if kind in _PLAIN else _code_of(kind)
        data = value if code == _BYTES else value.encode() if kind is str else b""
        if code in (_TENSOR, _ARRAY):
            name = self.seen.setdefault(id(value), self.place)
            self.tensors[name], data = value, name.encode()
        self.room -= NODE_BYTES + len(data)
        if self.room < 0:
            raise ValueError(f"it is too much for a message of {MAX_BYTES} bytes; send an array")
        if kind in _PLAIN and (kind is not int or value in _INT64):
            self.nodes.append(value)
        elif code in (_BYTES, _TENSOR, _ARRAY):
            self.nodes.append(Ext(code, data))
        elif code is not None:
            # A copy, since another thread may change it meanwhile.
            items = list(value.items() if kind in _DICTS else enumerate(value))
            self.nodes.append(Ext(code, len(items).to_bytes(4, "little")))
            _expect_keys(kind, items)
            for key, item in items:
                if kind in _DICTS:
                    self.add(key)
                self.inside(key, self.add, item)
        elif decomposer := default_registry.find(kind):
            self.nodes.append(Ext(_TYPE, data := decomposer.name.encode()))
            self.room -= len(data)
            self.inside(None, self.add, decomposer.decompose(value))
        else:
            raise TypeError(
                f"values of type {kind.__qualname__} cannot be sent; convert them, leave them out, "
                "or register their type (register_dataclass, register_enum, or a Decomposer)"
            )

    def take(self) -> Any:
        """Build the value of the next nodes."""
        if not self.nodes:
            raise ValueError("the message has no more nodes")
        node = self.nodes.pop()
        if type(node) is not Ext:
            return node
        code, data = node.code, bytes(node.data)
        if code == _BYTES:
            return data
        if code in (_TENSOR, _ARRAY):
            name = data.decode()
            if name not in self.tensors:
                raise ValueError(f"the tensor {name!r} did not arrive")
            if (name, code) not in self.seen:  # of either kind, there is one
                value = self.tensors[name]
                if code == _ARRAY and not isinstance(value, np.ndarray):
                    value = value.numpy()
                elif code == _TENSOR and isinstance(value, np.ndarray):
                    value = import_module("torch").from_numpy(value)
                self.seen[name, code] = value
            return self.seen[name, code]
        if code == _TYPE and (decomposer := default_registry.by_name.get(data.decode())):
            return decomposer.recompose(self.inside(None, self.take))
        if not 0 <= code < len(_CONTAINERS):
            raise ValueError(f"{data!r} is no type that is registered here; register it")
        kind = _CONTAINERS[code]
        items: list[tuple[Any, Any]] = []
        for index in range(int.from_bytes(data, "little")):
            key = self.inside(None, self.take) if kind in _DICTS else index
            items.append((key, self.inside(key, self.take)))
        _expect_keys(kind, items)
        return kind(items if kind in _DICTS else [item for _, item in items])


def _expect_keys(kind: type, items: list[tuple[Any, Any]]) -> None:
    if kind in _DICTS and not {type(key) for key, _ in items} <= {str, int}:
        raise TypeError("it has a key that is neither a str nor an int; make it one")
