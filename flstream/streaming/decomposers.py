"""Types that a payload may hold beyond the built-in ones, and their conversion to those.

A payload names a type by its registered name, never by the path of a class. The receiver looks the
name up among the types that it registered itself, so no message can make it import or run any other
code.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import OrderedDict
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np

from flstream.errors import PayloadError

PLAIN = (type(None), bool, int, float, str, bytes)
"""Types that are values of the message itself."""

CONTAINERS = (list, tuple, dict, OrderedDict)
"""Types of nested containers. ``OrderedDict`` is what ``Module.state_dict`` returns."""

DataclassT = TypeVar("DataclassT", bound=type)
EnumT = TypeVar("EnumT", bound=type[Enum])


class Decomposer(Protocol):
    """Converts a value to built-in payload types, and back.

    After NVFlare's FOBS decomposers, of which ``TensorDecomposer`` is one. Tensors need no care
    here: wherever they are in the result of ``decompose``, they are streamed as tensors.
    """

    @property
    def name(self) -> str:
        """Name that stands for the type in a message; the same on both sides."""

    @property
    def supported_type(self) -> type:
        """The type itself. Its subclasses are other types, with decomposers of their own."""

    def decompose(self, value: Any) -> object:
        """Return the value as any payload: dicts, lists, tensors, or other registered types."""

    def recompose(self, payload: Any) -> object:
        """Rebuild the value from a payload.

        The payload is not trusted: it may have any structure that can be sent. Whatever this raises
        becomes a :class:`~flstream.errors.PayloadError`.
        """


class Attributes(dict[str, object]):
    """Mapping that a decomposer may return to make paths read ``.field``.

    It arrives as a plain dict.
    """


class Registry:
    """The types that payloads may hold beyond the built-in ones, by type and by name."""

    def __init__(self) -> None:
        self._by_type: dict[type, Decomposer] = {}
        self._by_name: dict[str, Decomposer] = {}

    def register(self, decomposer: Decomposer) -> None:
        """Allow values of ``decomposer.supported_type`` in payloads.

        Raises:
            PayloadError: The type is allowed already, or the name is taken.
        """
        name, kind = decomposer.name, decomposer.supported_type
        if kind in self._by_type or is_built_in(kind):
            raise PayloadError(f"{kind.__qualname__} can be sent already; register a type once")
        if name in self._by_name:
            other = self._by_name[name].supported_type.__qualname__
            raise PayloadError(f"the name {name!r} stands for {other}; choose another one")
        self._by_type[kind] = self._by_name[name] = decomposer

    def register_dataclass(self, cls: DataclassT, name: str | None = None) -> DataclassT:
        """Allow instances of a dataclass in payloads, field by field; usable as a decorator.

        An arriving value is built by the class itself, so its ``__post_init__`` is the place to
        check fields that are not trusted. Attributes that are not fields are not sent.

        Args:
            cls: The dataclass. Fields with ``init=False`` are set after it was built.
            name: Name in messages; the name of the class if None.

        Raises:
            PayloadError: It is not a dataclass, or takes other arguments than its fields, such as
                an
            ``InitVar``; or see :meth:`register`.
        """
        if not dataclasses.is_dataclass(cls):
            raise PayloadError(f"{cls.__qualname__} is not a dataclass; register a decomposer")
        built_from = {field.name for field in dataclasses.fields(cls) if field.init}
        if set(inspect.signature(cls).parameters) != built_from:
            raise PayloadError(
                f"{cls.__qualname__} is not built from its fields alone; register a decomposer"
            )
        self.register(_DataclassDecomposer(name or cls.__name__, cls))
        return cls

    def register_enum(self, cls: EnumT, name: str | None = None) -> EnumT:
        """Allow the members of an enum in payloads, by their names; usable as a decorator.

        Args:
            cls: The enum. Combined flags have no name of their own and are refused.
            name: Name in messages; the name of the class if None.

        Raises:
            PayloadError: See :meth:`register`.
        """
        self.register(_EnumDecomposer(name or cls.__name__, cls))
        return cls

    def of_type(self, kind: type) -> Decomposer | None:
        """Return the decomposer of exactly this type, or None."""
        return self._by_type.get(kind)

    def named(self, name: str) -> Decomposer | None:
        """Return the decomposer of the type with this name in messages, or None."""
        return self._by_name.get(name)


default_registry = Registry()
"""Registry that :func:`~flstream.streaming.payload.pack` uses by default.

A module that defines a type for payloads registers it here.
"""


def is_tensor_type(kind: type) -> bool:
    """Return whether the type is ``torch.Tensor`` or ``torch.nn.Parameter``, and no subclass."""
    torch = sys.modules.get("torch")  # without the import, nothing is a tensor
    return torch is not None and kind in (torch.Tensor, torch.nn.Parameter)


def is_built_in(kind: type) -> bool:
    """Return whether payloads hold values of exactly this type without a decomposer."""
    return (
        kind in (*PLAIN, *CONTAINERS, np.ndarray)
        or issubclass(kind, np.generic)
        or is_tensor_type(kind)
    )


@dataclasses.dataclass(frozen=True)
class _DataclassDecomposer:
    name: str
    supported_type: type

    def decompose(self, value: Any) -> Attributes:
        return Attributes({field.name: getattr(value, field.name) for field in self._fields})

    def recompose(self, payload: Any) -> object:
        names = {field.name for field in self._fields}
        if type(payload) is not dict or payload.keys() != names:
            raise PayloadError(f"its fields are not {sorted(names)}; both sides must agree on them")
        value = self.supported_type(
            **{field.name: payload[field.name] for field in self._fields if field.init}
        )
        for field in self._fields:
            if not field.init:
                # The dataclass may be frozen.
                object.__setattr__(value, field.name, payload[field.name])
        return value

    @property
    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(self.supported_type)


@dataclasses.dataclass(frozen=True)
class _EnumDecomposer:
    name: str
    supported_type: type[Enum]

    def decompose(self, value: Any) -> str:
        if value.name not in self.supported_type.__members__:
            raise PayloadError("it combines several flags; send the number instead")
        return str(value.name)

    def recompose(self, payload: Any) -> Enum:
        return self.supported_type[payload]
