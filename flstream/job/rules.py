"""What a key of the job file accepts: one rule a kind of value.

A rule is put on a field as `Annotated[type, Rule(...)]`. It parses what HOCON gives, says in
words what is allowed, and writes a value back as HOCON, so that validation, messages and the
resolved job file cannot disagree.
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from flstream import units
from flstream.job.problems import Problem, did_you_mean, given
from flstream.job.values import render_value

KEY = re.compile(r"[A-Za-z0-9_-]+")


def refuse(*problems: Problem) -> PydanticCustomError:
    """Return the error with which a rule refuses a value.

    The keys of the problems are relative to the field, so `""` is the field itself.
    """
    return PydanticCustomError("refused", "refused", {"problems": problems})


class Rule(ABC):
    """What one key accepts. A rule sets `allowed` and `parse`, and `render` if it must."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What is allowed, to be read after "must be"."""

    @abstractmethod
    def parse(self, value: Any, folder: Path) -> Any:
        """Return the typed value, or raise what `refuse` or `self.refused` gives.

        `folder` is the job file's: relative paths start there.
        """

    def render(self, value: Any) -> str:
        """Return HOCON text that parses to this value."""
        return render_value(value)

    def refused(self, value: Any, hint: str = "") -> PydanticCustomError:
        """Return the error for a value that is not allowed."""
        return refuse(Problem("", given(value), self.allowed, hint))

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let pydantic call `parse`, except for the null of a field that may be null."""

        def parse(value: Any, info: ValidationInfo) -> Any:
            return self.parse(value, (info.context or {}).get("folder") or Path.cwd())

        schema = core_schema.with_info_plain_validator_function(parse)
        nullable = NoneType in get_args(source)
        return core_schema.nullable_schema(schema) if nullable else schema


@dataclass(frozen=True)
class Whole(Rule):
    """A whole number from `least` to `most`; digits in quotes count (`${?N}` gives them)."""

    least: int
    most: int | None = None
    word: str = ""
    """What may stand in the number's place, such as `all`."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        number = f"a whole number of at least {self.least}"
        if self.most is not None:
            number = f"a whole number from {self.least} to {self.most}"
        return f"{number}, or {self.word}" if self.word else number

    def parse(self, value: Any, folder: Path) -> int | str:
        """Return the number, or the word."""
        if self.word and value == self.word:
            return self.word
        number = read_number(value)
        if not isinstance(number, int) or number < self.least:
            raise self.refused(value)
        if self.most is not None and number > self.most:
            raise self.refused(value)
        return number


@dataclass(frozen=True)
class CountOrFraction(Rule):
    """A number of things (`1` is one) or a fraction of them (`1.0` is all)."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return "a whole number of at least 1, or a fraction above 0 and up to 1.0 (all)"

    def parse(self, value: Any, folder: Path) -> int | float:
        """Return an int for a number of things, a float for a fraction."""
        number = read_number(value)
        most = 1.0 if isinstance(number, float) else math.inf
        if number is None or not 0 < number <= most:
            raise self.refused(value)
        return number


@dataclass(frozen=True)
class Bytes(Rule):
    """A size in bytes."""

    least: int
    most: int | None = None
    multiple_of: int = 1
    zero: str = ""
    """What 0 means, where 0 is allowed beside the range."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        what = f"a multiple of {self.multiple_of} bytes" if self.multiple_of > 1 else "a size"
        least = units.format_bytes(self.least)
        ends = f"of at least {least}"
        if self.most is not None:
            ends = f"from {least} to {units.format_bytes(self.most)}"
        return f"{f'0 ({self.zero}) or ' if self.zero else ''}{what} {ends}"

    def parse(self, value: Any, folder: Path) -> int:
        """Return the number of bytes."""
        try:
            size = units.parse_bytes(value)
        except ValueError:
            raise self.refused(value, f"write {units.SIZE_ALLOWED}") from None
        if size == 0 and self.zero:
            return size
        if size < self.least or (self.most is not None and size > self.most):
            raise self.refused(value)
        if size % self.multiple_of:
            lower = size - size % self.multiple_of
            raise self.refused(value, f"nearest: {lower} or {lower + self.multiple_of}")
        return size

    def render(self, value: Any) -> str:
        """Return the size in the largest unit that is exact."""
        return units.format_bytes_exact(value)


@dataclass(frozen=True)
class Seconds(Rule):
    """A duration longer than zero."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return f"{units.DURATION_ALLOWED}, longer than 0"

    def parse(self, value: Any, folder: Path) -> float:
        """Return the number of seconds."""
        try:
            seconds = units.parse_seconds(value)
        except ValueError:
            raise self.refused(value) from None
        if seconds == 0:
            raise self.refused(value)
        return seconds

    def render(self, value: Any) -> str:
        """Return the duration in seconds."""
        return units.format_seconds_exact(value)


@dataclass(frozen=True)
class Choice(Rule):
    """One of a few names."""

    names: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return self.names[0] if len(self.names) == 1 else f"one of {', '.join(self.names)}"

    def parse(self, value: Any, folder: Path) -> str:
        """Return the name."""
        if value not in self.names:
            raise self.refused(value, did_you_mean(str(value).lower(), self.names))
        return str(value)


@dataclass(frozen=True)
class Text(Rule):
    """A text that matches a pattern."""

    pattern: str
    in_words: str

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return self.in_words

    def parse(self, value: Any, folder: Path) -> str:
        """Return the text."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise self.refused(value)
        return value


@dataclass(frozen=True)
class Real(Rule):
    """A finite number of at least `least` (or above it) and below `below`."""

    least: float
    below: float = math.inf
    above_least: bool = False

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        lower = f"{'above' if self.above_least else 'of at least'} {self.least:g}"
        return f"a number {lower}{'' if self.below == math.inf else f' and below {self.below:g}'}"

    def parse(self, value: Any, folder: Path) -> float:
        """Return the number as a float."""
        number = read_number(value)
        # A whole number may have more digits than a float.
        if number is None or not self.least <= number < min(self.below, sys.float_info.max):
            raise self.refused(value)
        if self.above_least and number == self.least:
            raise self.refused(value)
        return float(number)


@dataclass(frozen=True)
class Patterns(Rule):
    """A list of regular expressions."""

    least: int = 0

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        what = "a list of regular expressions"
        return f"{what}, at least {self.least}" if self.least else what

    def parse(self, value: Any, folder: Path) -> list[str]:
        """Return the expressions, each of which compiles."""
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refused(value, 'write ["first", "second"]')
        if len(value) < self.least:
            raise self.refused(value)
        for each in value:
            try:
                re.compile(each)
            except re.error as error:
                raise self.refused(each, f"it does not parse: {error}") from None
        return value


@dataclass(frozen=True)
class FreeArgs(Rule):
    """Arguments for somebody else's code: plain values under keys of any name.

    Values stay as HOCON gives them: `256 MiB` and `10 s` are texts, for the code to read.
    """

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return "a section of keys and plain values"

    def parse(self, value: Any, folder: Path) -> dict[str, Any]:
        """Return the arguments as given, once every key and number in them is sound."""
        if not isinstance(value, dict):
            raise self.refused(value)
        problems = list(_unsound("", value))
        if problems:
            raise refuse(*problems)
        return value


def _unsound(key: str, value: Any) -> list[Problem]:
    """Find what could not be passed on, or not be written back as the same HOCON."""
    if isinstance(value, dict):
        found = [
            Problem(key, f"key {given(name).removeprefix('given ')}", "letters, digits, _ and -")
            for name in value
            if not KEY.fullmatch(name)
        ]
        for name, inner in value.items():
            found += _unsound(f"{key}.{name}".lstrip("."), inner)
        return found
    if isinstance(value, list):
        return [found for inner in value for found in _unsound(key, inner)]
    if isinstance(value, float) and not math.isfinite(value):
        return [Problem(key, given(value), "a finite number")]
    return []


_NUMBER = re.compile(
    r"[+-]?(?:\d{1,40}(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<exponent>[eE][+-]?\d+)?"
)


def read_number(value: Any) -> int | float | None:
    """Return the number that HOCON or a text of digits gives, None for anything else."""
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        whole = not (match["fraction"] or match["point"] or match["exponent"])
        return int(value) if whole else float(value)
    # bool is an int to Python, but `true` is no number to a reader.
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
