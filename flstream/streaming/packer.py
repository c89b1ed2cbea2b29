"""The walk through a value that is to be sent: its nodes, its tensors, and the path to each."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from flstream.errors import LayoutError, PayloadError
from flstream.model.device import viewed
from flstream.model.memory import Framework
from flstream.streaming import nodes
from flstream.streaming.decomposers import (
    CONTAINERS,
    PLAIN,
    Attributes,
    Decomposer,
    Registry,
    is_namedtuple,
    is_tensor_type,
    predictable,
)

if TYPE_CHECKING:
    import torch


class _Attribute(NamedTuple):
    """The step of a path from a value to its attribute; other steps are keys and indices."""

    name: str


class Packer:
    """Collects the nodes and the tensors of one value.

    Attributes:
        nodes: Nodes of the message.
        tensors: Tensors by path, in the order of the walk.
    """

    def __init__(self, registry: Registry) -> None:
        self.nodes: list[nodes.Node] = []
        self.tensors: dict[str, torch.Tensor | np.ndarray[Any, Any]] = {}
        self._registry = registry
        self._names: dict[tuple[object, ...], str] = {}  # by a key that is equal for tied tensors
        self._steps: list[str | int | _Attribute] = []
        self._around: set[int] = set()  # ids of the values around the present one
        self._size = 0  # least bytes of the message so far
        self._int_keys = 0

    def add(self, value: Any) -> None:
        """Append a value and everything in it.

        Raises:
            PayloadError: It cannot be sent; the message names the path.
        """
        kind = type(value)
        if kind in _ADD:
            _ADD[kind](self, value)
        elif isinstance(value, np.generic):
            self._scalar(value)
        elif is_tensor_type(kind):
            self._tensor(value)
        elif decomposer := self._registry.of_type(kind):
            self._decomposed(value, decomposer)
        else:
            self._refuse(f"is a {kind.__qualname__}, which cannot be sent; {_advice(value)}")

    def refuse_size(self) -> NoReturn:
        """Raise the error for a message that is too long.

        Raises:
            PayloadError: Always.
        """
        self._refuse(
            f"makes the message longer than {nodes.MAX_MESSAGE_BYTES} bytes, tensors not counted; "
            "send long data as an array"
        )

    def _plain(self, value: nodes.Plain) -> None:
        self._append(value)

    def _int(self, value: int) -> None:
        if value in nodes.INT64:
            self._append(value)
        else:
            size = value.bit_length() // 8 + 1  # one more bit, for the sign
            self._append(nodes.BigInt(value.to_bytes(size, "little", signed=True)), size)

    def _text(self, value: str) -> None:
        try:
            size = len(value) if value.isascii() else len(value.encode())
        except UnicodeEncodeError:
            self._refuse("has text that is no Unicode (a lone surrogate); repair it or send bytes")
        self._append(value, size)

    def _blob(self, value: bytes) -> None:
        self._append(nodes.Blob(value), len(value))

    def _list(self, value: list[Any] | tuple[Any, ...]) -> None:
        items = tuple(value)  # another thread may append to it meanwhile
        self._append(nodes.Container("list" if type(value) is list else "tuple", len(items)))
        with self._inside(value):
            for index, item in enumerate(items):
                self._child(index, item)

    def _dict(self, value: dict[Any, Any]) -> None:
        items = tuple(value.items())
        self._append(nodes.Container("odict" if type(value) is OrderedDict else "dict", len(items)))
        with self._inside(value):
            for key, item in items:
                self._key(key)
                named = type(value) is Attributes and key.isidentifier()
                self._child(_Attribute(key) if named else key, item)

    def _key(self, key: object) -> None:
        if type(key) is str:
            self._text(key)
        elif type(key) is int and key in nodes.INT64:
            self._count_keys(1)
            self._append(key)
        else:
            kind = "int of more than 64 bits" if type(key) is int else type(key).__qualname__
            self._refuse(f"has a key that is a {kind}; make it a str or a smaller int")

    def _count_keys(self, count: int) -> None:
        self._int_keys += count
        if self._int_keys > nodes.MAX_INT_KEYS:
            self._refuse(
                f"has more than {nodes.MAX_INT_KEYS} int keys, or elements of sets that are no "
                "text, together with what is before it; make them text, or send them as arrays"
            )

    def _scalar(self, value: np.generic[Any]) -> None:
        code = self._checked(np.asarray(value))
        if value.dtype.type is not type(value):
            self._refuse(f"is a {type(value).__qualname__}, which cannot be sent; {_advice(value)}")
        self._append(nodes.Scalar(code, value.tobytes()))

    def _tensor(self, value: torch.Tensor | np.ndarray[Any, Any]) -> None:
        self._checked(value)
        place = _place_of(value)
        name = self._names.get(place)
        if name is None:
            name = self._names[place] = self._path()
            self.tensors[name] = value  # keeps its memory from being reused for another
        framework: Framework = "numpy" if isinstance(value, np.ndarray) else "pytorch"
        self._append(nodes.TensorRef(name, framework), len(name))

    def _decomposed(self, value: object, decomposer: Decomposer) -> None:
        self._append(nodes.Decomposed(decomposer.name), len(decomposer.name))
        with self._inside(value):
            if isinstance(value, set | frozenset):
                self._count_keys(predictable(value))
            try:
                plain = decomposer.decompose(value)
            except Exception as error:  # a decomposer is the user's code
                raise PayloadError(
                    f"{self._path()} is a {decomposer.name} that cannot be taken apart: {error}"
                ) from error
            if type(plain) is Attributes:
                self._dict(plain)
            else:
                self.add(plain)

    def _child(self, step: str | int | _Attribute, value: object) -> None:
        self._steps.append(step)
        self.add(value)
        self._steps.pop()

    @contextmanager
    def _inside(self, value: object) -> Iterator[None]:
        if id(value) in self._around:
            self._refuse("contains itself; break the cycle")
        if len(self._around) == nodes.MAX_DEPTH:
            self._refuse(f"is nested more than {nodes.MAX_DEPTH} deep; flatten it")
        self._around.add(id(value))
        yield
        self._around.remove(id(value))

    def _append(self, node: nodes.Node, size: int = 0) -> None:
        self._size += 1 + size
        if self._size > nodes.MAX_MESSAGE_BYTES:
            self.refuse_size()
        if len(self.nodes) == nodes.MAX_NODES:
            self._refuse(
                f"is more than {nodes.MAX_NODES} values, with what is before it; "
                "send numbers as an array"
            )
        self.nodes.append(node)

    def _checked(self, value: object) -> str:
        try:
            return viewed(self._path(), value).code
        except LayoutError as error:
            raise PayloadError(str(error)) from error

    def _path(self) -> str:
        return "payload" + "".join(map(_rendered, self._steps))

    def _refuse(self, flaw: str) -> NoReturn:
        raise PayloadError(f"{self._path()} {flaw}")


_ADD: dict[type, Callable[[Packer, Any], None]] = {
    NoneType: Packer._plain,
    bool: Packer._plain,
    float: Packer._plain,
    int: Packer._int,
    str: Packer._text,
    bytes: Packer._blob,
    list: Packer._list,
    tuple: Packer._list,
    dict: Packer._dict,
    OrderedDict: Packer._dict,
    np.ndarray: Packer._tensor,
}


def _rendered(step: str | int | _Attribute) -> str:
    if isinstance(step, _Attribute):
        return f".{step.name}"
    return f"[{json.dumps(step, ensure_ascii=False)}]"


def _place_of(value: torch.Tensor | np.ndarray[Any, Any]) -> tuple[object, ...]:
    """Return a key that is equal for tensors that show the same elements of the same memory."""
    if isinstance(value, np.ndarray):
        start = value.__array_interface__["data"][0] if value.size else id(value)
        return start, value.shape, value.strides, value.dtype
    # Empty tensors have no memory to share. A lazily conjugated or negated tensor is in the memory
    # of the original, and shows other values.
    start = value.data_ptr() if value.numel() else id(value)
    return start, value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg()


def _advice(value: object) -> str:
    if isinstance(value, Enum):
        return "register its type with register_enum"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "register its class with register_dataclass, or leave it out"
    if is_namedtuple(type(value)):
        return "register its class with register_namedtuple, or convert it to a tuple"
    for base in (*CONTAINERS, *PLAIN, np.ndarray):
        if isinstance(value, base):
            return f"convert it to the {base.__name__} that it extends, or register a decomposer"
    return "register a decomposer for it or leave it out"
