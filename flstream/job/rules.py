"""Kinds of values of the job file, for the annotations of keys.

Ranges, lengths and choices are pydantic's own: ``Annotated[Whole, Field(ge=1)]``,
``Literal["max", "min"]``. What pydantic has no constraint for is a validator, with a
:class:`~flstream.job.annotations.ValueKind` that says in words what it takes.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
)
from pydantic_core import PydanticKnownError

from flstream import units
from flstream.job.annotations import ValueKind
from flstream.job.values import render_value


class Section(BaseModel):
    """Section of the job file: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


_NUMBER = re.compile(
    r"[+-]?(?:\d{1,40}(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<exponent>[eE][+-]?\d+)?"
)


def read_number(value: Any) -> Any:
    """Return the number that a text is, as of `${?N}`; any other value as it is."""
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        whole = not (match["fraction"] or match["point"] or match["exponent"])
        return int(value) if whole else float(value)
    return value


def _read_flag(value: Any) -> Any:
    texts = {"true": True, "false": False}
    return texts.get(value.lower(), value) if isinstance(value, str) else value


def _read_size(value: Any) -> int:
    try:
        return units.parse_bytes(value)
    except ValueError:
        raise ValueError(f"write {units.SIZE_ALLOWED}") from None


def render_size(value: int | str) -> str:
    """Return a size in the largest unit that is exact, or a word in its place."""
    return units.format_bytes_exact(value) if isinstance(value, int) else render_value(value)


def _whole_frames(size: int) -> int:
    if size % 16:
        lower = size - size % 16
        raise ValueError(f"nearest: {lower} or {lower + 16}" if lower else "")
    return size


# Three centuries, and a number that every way of writing it can hold.
_MOST_SECONDS = 10**10


def _read_seconds(value: Any) -> float:
    try:
        seconds = units.parse_seconds(value)
    except ValueError:
        seconds = 0.0
    if seconds == 0:
        raise ValueError("")  # its kind says all there is to say
    if seconds > _MOST_SECONDS:
        raise ValueError(f"{_MOST_SECONDS} s is most")
    return seconds


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it does not parse: {error}") from None
    return pattern


ItemsT = TypeVar("ItemsT", bound=Sequence[Any])


def _some(items: ItemsT) -> ItemsT:
    if not items:
        raise PydanticKnownError("list_type")
    return items


def _once(names: ItemsT) -> ItemsT:
    if twice := first_twice(names):
        raise ValueError(f"{twice} is in it twice")
    return names


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that comes a second time; None if each is there once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder of the job file, in which relative paths start."""
    return (info.context or {}).get("folder") or Path.cwd()


Flag = Annotated[bool, Strict(), BeforeValidator(_read_flag)]
"""True or false, or the text of one."""

Whole = Annotated[int, Strict(), BeforeValidator(read_number)]
"""A whole number, or the text of one."""

Real = Annotated[float, Strict(), AllowInfNan(False), BeforeValidator(read_number)]
"""A finite number, or the text of one."""

CountOrFraction = Annotated[
    Annotated[int, Strict(), Field(ge=1)] | Annotated[float, Strict(), Field(gt=0, le=1)],
    BeforeValidator(read_number),
    ValueKind("a whole number of at least 1, or a fraction above 0 and up to 1.0 (all)"),
]
"""A number of things (an int, `1` is one) or a fraction of them (a float, `1.0` is all)."""

Size = Annotated[
    int,
    BeforeValidator(_read_size),
    ValueKind("a size", number=units.format_bytes, render=render_size),
]
"""A size in bytes."""

FrameSize = Annotated[
    int,
    BeforeValidator(_read_size),
    AfterValidator(_whole_frames),
    ValueKind("a multiple of 16 bytes", number=units.format_bytes, render=render_size),
]
"""A size in bytes at which no element of a tensor is cut."""


def _in_range(size: int) -> int:
    if size and not 16 <= size <= 1 << 30:
        raise ValueError("")  # its kind says all there is to say
    return size


ChunkSize = Annotated[
    int,
    BeforeValidator(_read_size),
    AfterValidator(_whole_frames),
    AfterValidator(_in_range),
    ValueKind("0 (streaming off) or a multiple of 16 bytes from 16 B to 1 GiB", render=render_size),
]
"""The longest frame, in bytes; 0 for none."""

Seconds = Annotated[
    float,
    BeforeValidator(_read_seconds),
    ValueKind(f"{units.DURATION_ALLOWED}, longer than 0", render=units.format_seconds_exact),
]
"""A duration in seconds, longer than zero."""

Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression."""

Patterns = Annotated[
    list[Pattern],
    ValueKind("a list of regular expressions", '["first", "second"]'),
]
"""A list of regular expressions."""

NOT_EMPTY = AfterValidator(_some)
"""Refuses an empty list as if it were none, with its kind's example."""

EACH_ONCE = AfterValidator(_once)
"""Refuses a list in which a name comes twice."""
