"""Which types a payload may hold beyond the built-in ones, and how they come apart.

What travels is a registered name, never the path of a class: the receiver looks the name up among
the types that it registered itself, so no message can make it import or run anything else.
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
"""What travels as a value of the message itself."""

CONTAINERS = (list, tuple, dict, OrderedDict)
"""What a payload is nested of. ``OrderedDict`` is what ``Module.state_dict`` returns."""

DataclassT = TypeVar("DataclassT", bound=type)
EnumT = TypeVar("EnumT", bound=type[Enum])


class Decomposer(Protocol):
    """Takes a value apart into what a payload can hold, and puts it together again.

    After NVFlare's FOBS decomposers, of which ``TensorDecomposer`` is one. Tensors need no mention
    here: wherever they lie in what ``decompose`` returns, they leave it for the byte range.
    """

    @property
    def name(self) -> str:
        """What travels in place of the type; the same on both sides."""

    @property
    def supported_type(self) -> type:
        """The type itself. Its subclasses are other types, with decomposers of their own."""

    def decompose(self, value: Any) -> object:
        """The value as any payload: dicts, lists, tensors, values of other registered types."""

    def recompose(self, payload: Any) -> object:
        """The value again, from what arrived.

        The payload is a stranger's: any structure that can travel may arrive here. Whatever this
        raises becomes a :class:`~flstream.errors.PayloadError`.
        """


class Attributes(dict[str, object]):
    """What a decomposer may return so that paths read ``.field``; it arrives as a plain dict."""


class Registry:
    """The types that payloads may hold beyond the built-in ones, by type and by name."""

    def __init__(self) -> None:
        self._by_type: dict[type, Decomposer] = {}
        self._by_name: dict[str, Decomposer] = {}

    def register(self, decomposer: Decomposer) -> None:
        """Let values of ``decomposer.supported_type`` travel.

        Raises:
            PayloadError: the type travels already, or the name is taken.
        """
        name, kind = decomposer.name, decomposer.supported_type
        if kind in self._by_type or is_built_in(kind):
            raise PayloadError(f"{kind.__qualname__} can be sent already; register a type once")
        if name in self._by_name:
            other = self._by_name[name].supported_type.__qualname__
            raise PayloadError(f"the name {name!r} stands for {other}; choose another one")
        self._by_type[kind] = self._by_name[name] = decomposer

    def register_dataclass(self, cls: DataclassT, name: str | None = None) -> DataclassT:
        """Let instances of a dataclass travel, field by field; usable as a decorator.

        An arriving value is built by the class itself, so its ``__post_init__`` is where fields
        from strangers are checked. Attributes that are not fields stay behind.

        Args:
            cls: the dataclass. Fields with ``init=False`` are set after it was built.
            name: what travels; the name of the class if None.

        Raises:
            PayloadError: not a dataclass, or one that takes other arguments than its fields, such
                as an ``InitVar``; or as :meth:`register`.
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
        """Let the members of an enum travel, by their names; usable as a decorator.

        Args:
            cls: the enum. Combined flags have no name of their own and are refused.
            name: what travels; the name of the class if None.

        Raises:
            PayloadError: as :meth:`register`.
        """
        self.register(_EnumDecomposer(name or cls.__name__, cls))
        return cls

    def of_type(self, kind: type) -> Decomposer | None:
        """The decomposer of exactly this type, if there is one."""
        return self._by_type.get(kind)

    def named(self, name: str) -> Decomposer | None:
        """The decomposer of the type that travels under ``name``, if there is one."""
        return self._by_name.get(name)


default_registry = Registry()
"""What :func:`~flstream.streaming.payload.pack` uses unless it is told otherwise.

Whoever owns a type that travels registers it here, where it is defined.
"""


def is_tensor_type(kind: type) -> bool:
    """Whether this is ``torch.Tensor`` or ``torch.nn.Parameter``; other subclasses are not."""
    torch = sys.modules.get("torch")  # where it was never imported, nothing is a tensor
    return torch is not None and kind in (torch.Tensor, torch.nn.Parameter)


def is_built_in(kind: type) -> bool:
    """Whether values of exactly this type travel without a decomposer."""
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
                object.__setattr__(value, field.name, payload[field.name])  # it may be frozen
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
