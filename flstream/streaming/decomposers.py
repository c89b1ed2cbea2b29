"""Types that a payload may hold beyond the built-in ones, and their conversion to those.

A payload names a type by its registered name, never by the path of a class. The receiver looks the
name up among the types that it registered itself, so no message can make it import or run any other
code.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Set
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np

from flstream.errors import PayloadError
from flstream.streaming.nodes import MAX_ALIKE

PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Types that are no containers."""

CONTAINERS = (list, tuple, dict, OrderedDict, set, frozenset)
"""Types of nested containers. ``OrderedDict`` is what ``Module.state_dict`` returns."""

DataclassT = TypeVar("DataclassT", bound=type)
NamedTupleT = TypeVar("NamedTupleT", bound=type[tuple[Any, ...]])
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

    def decompose(self, value: Any, /) -> object:
        """Return the value as any payload: dicts, lists, tensors, or other registered types."""

    def recompose(self, payload: Any, /) -> object:
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
        self._by_type: dict[type, Decomposer] = {each.supported_type: each for each in _BUILT_IN}
        self._by_name: dict[str, Decomposer] = {each.name: each for each in (*_BUILT_IN, _SIZE)}

    def register(self, decomposer: Decomposer) -> None:
        """Allow values of ``decomposer.supported_type`` in payloads.

        Raises:
            PayloadError: The type is allowed already, or the name is taken.
        """
        name, kind = decomposer.name, decomposer.supported_type
        if self.of_type(kind) or is_built_in(kind):
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
        fields = dataclasses.fields(cls)
        given = tuple(field.name for field in fields if field.init)
        others = tuple(field.name for field in fields if not field.init)
        self.register(_FieldsDecomposer(name or cls.__name__, cls, given, others))
        return cls

    def register_namedtuple(self, cls: NamedTupleT, name: str | None = None) -> NamedTupleT:
        """Allow instances of a namedtuple in payloads, field by field; usable as a decorator.

        An arriving value is built by the class itself, from its fields by name.

        Args:
            cls: A class of ``collections.namedtuple`` or ``typing.NamedTuple``.
            name: Name in messages; the name of the class if None.

        Raises:
            PayloadError: It is not a namedtuple, or takes other arguments than its fields; or see
                :meth:`register`.
        """
        if not is_namedtuple(cls):
            raise PayloadError(f"{cls.__qualname__} is not a namedtuple; register a decomposer")
        given = cls._fields  # type: ignore[attr-defined]
        self.register(_FieldsDecomposer(name or cls.__name__, cls, given))
        return cls

    def register_enum(self, cls: EnumT, name: str | None = None) -> EnumT:
        """Allow the members of an enum in payloads, by their names; usable as a decorator.

        Args:
            cls: The enum. Combined flags have no name of their own and are refused.
            name: Name in messages; the name of the class if None.

        Raises:
            PayloadError: See :meth:`register`.
        """
        self.register(_Conversion(name or cls.__name__, cls, _member_name, lambda name: cls[name]))
        return cls

    def of_type(self, kind: type) -> Decomposer | None:
        """Return the decomposer of exactly this type, or None."""
        torch = sys.modules.get("torch")
        is_size = torch is not None and kind is torch.Size
        return _SIZE if is_size else self._by_type.get(kind)

    def named(self, name: str) -> Decomposer | None:
        """Return the decomposer of the type with this name in messages, or None."""
        return self._by_name.get(name)


def is_tensor_type(kind: type) -> bool:
    """Return whether the type is ``torch.Tensor`` or ``torch.nn.Parameter``, and no subclass."""
    torch = sys.modules.get("torch")  # without the import, nothing is a tensor
    return torch is not None and kind in (torch.Tensor, torch.nn.Parameter)


def is_namedtuple(kind: type) -> bool:
    """Return whether a type has named fields as ``collections.namedtuple`` gives them."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def predictable(elements: Iterable[object]) -> int:
    """Return how many elements of a set may have a hash that a peer can foretell."""
    return sum(type(each) not in (str, bytes) for each in elements)


def is_built_in(kind: type) -> bool:
    """Return whether payloads hold values of exactly this type without a decomposer."""
    return (
        kind in (*PLAIN, *CONTAINERS, np.ndarray)
        or issubclass(kind, np.generic)
        or is_tensor_type(kind)
    )


def _ordered(elements: Set[object]) -> list[object]:
    """Return the elements of a set, those of these types in one order in every process."""
    plain = (int, float, str, bytes)
    return sorted(
        elements, key=lambda each: (type(each).__qualname__, each if type(each) in plain else 0)
    )


def _set_of(elements: list[object]) -> set[object]:
    if type(elements) is not list:
        raise PayloadError("its elements are no list")
    built, alike = set[object](), Counter[int]()
    for element in elements:
        value = hash(element)
        alike[value] += 1
        if alike[value] > MAX_ALIKE:
            raise PayloadError(f"more than {MAX_ALIKE} of its elements have one hash")
        built.add(element)
    if len(built) < len(elements):
        raise PayloadError("it has an element twice")
    return built


def _size_of(dimensions: tuple[int, ...]) -> object:
    try:
        import torch
    except ImportError as error:
        raise PayloadError("torch is not installed; install it, or have a tuple sent") from error
    if not all(type(each) is int and -(2**63) <= each < 2**63 for each in dimensions):
        raise PayloadError("its dimensions are no ints of 64 bits")
    return torch.Size(dimensions)


def _member_name(value: Enum) -> str:
    if value.name not in type(value).__members__:
        raise PayloadError("it combines several flags; send the number instead")
    return str(value.name)


@dataclasses.dataclass(frozen=True)
class _Conversion:
    name: str
    supported_type: type
    decompose: Callable[[Any], object]
    recompose: Callable[[Any], object]


@dataclasses.dataclass(frozen=True)
class _FieldsDecomposer:
    name: str
    supported_type: type
    given: tuple[str, ...]
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if inspect.signature(self.supported_type).parameters.keys() != set(self.given):
            raise PayloadError(
                f"{self.supported_type.__qualname__} is not built from its fields alone; "
                "register a decomposer"
            )

    def decompose(self, value: Any) -> Attributes:
        return Attributes({name: getattr(value, name) for name in (*self.given, *self.others)})

    def recompose(self, payload: Any) -> object:
        names = {*self.given, *self.others}
        if type(payload) is not dict or payload.keys() != names:
            raise PayloadError(f"its fields are not {sorted(names)}; both sides must agree on them")
        value = self.supported_type(**{name: payload[name] for name in self.given})
        for name in self.others:
            # A dataclass may be frozen.
            object.__setattr__(value, name, payload[name])
        return value


_BUILT_IN = (
    _Conversion("complex", complex, lambda it: (it.real, it.imag), lambda parts: complex(*parts)),
    _Conversion("set", set, _ordered, _set_of),
    _Conversion("frozenset", frozenset, _ordered, lambda elements: frozenset(_set_of(elements))),
)
# Torch may be imported later, or never. Its type is looked up when there is a value.
_SIZE = _Conversion("torch.Size", tuple, tuple, _size_of)


default_registry = Registry()
"""Registry that :func:`~flstream.streaming.payload.pack` uses by default.

A module that defines a type for payloads registers it here.
"""
