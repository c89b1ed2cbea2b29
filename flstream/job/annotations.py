"""What the annotations of keys say: in words, for messages and the reference page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from flstream.job.values import render_value


def render_plain(value: Any) -> str:
    """Return HOCON text that parses to a value of any type."""
    return render_value(to_jsonable_python(value, inf_nan_mode="constants"))


@dataclass(frozen=True)
class ValueKind:
    """What a kind of values is called, and how one is written."""

    words: str | Callable[[], str]
    """Description to follow "must be", or what returns it; ranges and lengths follow it."""
    example: str = ""
    """An example in HOCON, for who gives another type."""
    number: Callable[[Any], str] | None = None
    """Writes the ends of a range; None where the words say it all."""
    render: Callable[[Any], str] = render_plain
    """Writes a value as HOCON text."""


_OF_TYPES = {
    bool: ValueKind("true or false"),
    int: ValueKind("a whole number", number=str),
    float: ValueKind("a number", number="{:g}".format),
}


def described(annotation: Any) -> str:
    """Return the description of the values of a type, to follow "must be".

    Args:
        annotation: The type, with its constraints.
    """
    base, _ = _parts(annotation)
    of_union = ", or ".join(map(described, _union(base)))
    return _words(annotation) or of_union or f"of the type {inspect.formatannotation(base)}"


def is_in_words(annotation: Any) -> bool:
    """Whether the description of a type says all, with no need for its name."""
    return _words(annotation) != ""


def kind_of(annotation: Any) -> ValueKind | None:
    """Return the kind of a type's values; of a union, that of its first type that has one."""
    base, metadata = _parts(annotation)
    own = (each for each in metadata if isinstance(each, ValueKind))
    inner = (kind_of(each) for each in _union(base))
    return next(own, None) or next(filter(None, inner), None)


def choices(annotation: Any) -> Iterator[str]:
    """Yield the words that a type takes."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from choices(inner)


def entries_of(annotation: Any) -> Any:
    """Return the type of a dict's values, if it is in words; that of the dict, if not."""
    base, _ = _parts(annotation)
    inner = get_args(base)[1] if get_origin(base) is dict else None
    return inner if is_in_words(inner) else annotation


def _parts(annotation: Any) -> tuple[Any, Sequence[Any]]:
    """Return a type without its constraints, and these."""
    if get_origin(annotation) is not Annotated:
        return annotation, ()
    base, *metadata = get_args(annotation)
    flat: list[Any] = []
    for each in metadata:
        flat += each.metadata if isinstance(each, FieldInfo) else [each]
    grouped = ([*each] if isinstance(each, GroupedMetadata) else [each] for each in flat)
    return base, [inner for each in grouped for inner in each]


def _union(base: Any) -> list[Any]:
    """Return the types of a union but for None; none of what is no union."""
    is_union = get_origin(base) in (Union, UnionType)
    return [each for each in get_args(base) if each is not NoneType] if is_union else []


def _words(annotation: Any) -> str:
    """Return a type in words; empty for one that has none."""
    base, metadata = _parts(annotation)
    own = (each for each in metadata if isinstance(each, ValueKind))
    kind = next(own, None) or _OF_TYPES.get(base)
    if kind is not None:
        words = kind.words if isinstance(kind.words, str) else kind.words()
        ends = _range(metadata, kind.number, base is int) if kind.number else ""
        least = [f", at least {each.min_length}" for each in metadata if isinstance(each, MinLen)]
        return "".join([words, ends, *least])
    if get_origin(base) is Literal:
        names = [*choices(base)]
        return f"{'one of ' if len(names) > 1 else ''}{', '.join(names)}"
    inner = [_words(each) for each in _union(base)]
    return ", or ".join(inner) if all(inner) else ""


def _range(metadata: Sequence[Any], number: Callable[[Any], str], is_whole: bool) -> str:
    """Return the range of numbers, with a space before it; empty without one."""
    words = {
        Ge: ("ge", "of at least"),
        Gt: ("gt", "above"),
        Le: ("le", "at most"),
        Lt: ("lt", "below"),
    }
    ends = {
        word: number(getattr(each, name))
        for kind, (name, word) in words.items()
        for each in metadata
        if isinstance(each, kind)
    }
    if is_whole and [*ends] == ["of at least", "at most"]:
        return " from {} to {}".format(*ends.values())
    return f" {' and '.join(map(' '.join, ends.items()))}" if ends else ""
