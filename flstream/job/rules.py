"""Rules for the values of keys of the job file, one for each kind of value.

A rule is put on a field as `Annotated[type, ValueRule(...)]`. It parses a HOCON value, describes
the allowed values in words, and renders a value as HOCON, so that validation, messages and the
resolved job file agree.
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from flstream import units
from flstream.job.problems import Problem, did_you_mean, given, hint_of_name
from flstream.job.values import render_value


def refuse(*problems: Problem) -> PydanticCustomError:
    """Return the error with which a rule refuses a value.

    The keys of the problems are relative to the field: `""` is the field itself.
    """
    return PydanticCustomError("refused", "refused", {"problems": problems})


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that comes a second time; None if each is there once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


class ValueRule(ABC):
    """Rule for the values of one key; it defines `allowed`, `parse` and, if needed, `render`."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """Description of allowed values, to follow "must be"."""

    @abstractmethod
    def parse(self, value: Any, folder: Path) -> Any:
        """Return the typed value.

        Args:
            value: Value as HOCON gives it.
            folder: Folder of the job file, in which relative paths start.

        Raises:
            PydanticCustomError: The value is not allowed; it is made by `refuse` or `refused`.
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
        """Return the pydantic schema that calls `parse`, except for null where it is allowed."""

        def parse(value: Any, info: ValidationInfo) -> Any:
            return self.parse(value, (info.context or {}).get("folder") or Path.cwd())

        schema = core_schema.with_info_plain_validator_function(parse)
        nullable = NoneType in get_args(source)
        return core_schema.nullable_schema(schema) if nullable else schema


@dataclass(frozen=True)
class Flag(ValueRule):
    """True or false; the texts of these, as of `${?STRICT}`, are accepted."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "true or false"

    def parse(self, value: Any, folder: Path) -> bool:
        """Return the flag."""
        flag = {"true": True, "false": False}.get(str(value).lower())
        if flag is None or not isinstance(value, bool | str):
            raise self.refused(value)
        return flag


@dataclass(frozen=True)
class Whole(ValueRule):
    """A whole number from `least` to `most`; a text of digits, as of `${?N}`, is accepted."""

    least: int
    most: int | None = None
    word: str = ""
    """Word allowed instead of a number, such as `all`; empty for none."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
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
class CountOrFraction(ValueRule):
    """A number of things (`1` is one) or a fraction of them (`1.0` is all)."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a whole number of at least 1, or a fraction above 0 and up to 1.0 (all)"

    def parse(self, value: Any, folder: Path) -> int | float:
        """Return an int for a number of things, a float for a fraction."""
        number = read_number(value)
        most = 1.0 if isinstance(number, float) else math.inf
        if number is None or not 0 < number <= most:
            raise self.refused(value)
        return number


@dataclass(frozen=True)
class Bytes(ValueRule):
    """A size in bytes."""

    least: int
    most: int | None = None
    multiple_of: int = 1
    zero: str = ""
    """Meaning of 0, which is allowed beside the range; empty if it is not."""
    word: str = ""
    """Word allowed instead of a size, such as `auto`; empty for none."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        what = f"a multiple of {self.multiple_of} bytes" if self.multiple_of > 1 else "a size"
        least = units.format_bytes(self.least)
        ends = f"of at least {least}"
        if self.most is not None:
            ends = f"from {least} to {units.format_bytes(self.most)}"
        word = f", or {self.word}" if self.word else ""
        return f"{f'0 ({self.zero}) or ' if self.zero else ''}{what} {ends}{word}"

    def parse(self, value: Any, folder: Path) -> int | str:
        """Return the number of bytes, or the word."""
        if self.word and value == self.word:
            return self.word
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
        """Return the size in the largest unit that is exact, or the word."""
        return render_value(value) if value == self.word else units.format_bytes_exact(value)


@dataclass(frozen=True)
class Seconds(ValueRule):
    """A duration longer than zero."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
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
class Choice(ValueRule):
    """One of a few names."""

    names: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return self.names[0] if len(self.names) == 1 else f"one of {', '.join(self.names)}"

    def parse(self, value: Any, folder: Path) -> str:
        """Return the name."""
        if value not in self.names:
            raise self.refused(value, did_you_mean(str(value).lower(), self.names))
        return str(value)


@dataclass(frozen=True)
class Text(ValueRule):
    """A text that matches a pattern."""

    pattern: str
    in_words: str

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return self.in_words

    def parse(self, value: Any, folder: Path) -> str:
        """Return the text."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise self.refused(value, hint_of_name(value))
        return value


@dataclass(frozen=True)
class Real(ValueRule):
    """A finite number of at least `least` (or above it), below `below` and at most `most`."""

    least: float
    below: float = math.inf
    above_least: bool = False
    word: str = ""
    """Word allowed instead of a number, such as `median`; empty for none."""
    most: float = math.inf

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        lower = f"{'above' if self.above_least else 'of at least'} {self.least:g}"
        number = f"a number {lower}{'' if self.below == math.inf else f' and below {self.below:g}'}"
        if self.most != math.inf:
            number = f"a number {lower} and at most {self.most:g}"
        return f"{number}, or {self.word}" if self.word else number

    def parse(self, value: Any, folder: Path) -> float | str:
        """Return the number as a float, or the word."""
        if self.word and value == self.word:
            return self.word
        number = read_number(value)
        # A whole number may be too large for a float.
        if number is None or not self.least <= number < min(self.below, sys.float_info.max):
            raise self.refused(value)
        if number > self.most or (self.above_least and number == self.least):
            raise self.refused(value)
        return float(number)


@dataclass(frozen=True)
class Patterns(ValueRule):
    """A list of regular expressions."""

    least: int = 0

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
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


_NUMBER = re.compile(
    r"[+-]?(?:\d{1,40}(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<exponent>[eE][+-]?\d+)?"
)


def read_number(value: Any) -> int | float | None:
    """Return a value that is a number or the text of one as a number; None for any other."""
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        whole = not (match["fraction"] or match["point"] or match["exponent"])
        return int(value) if whole else float(value)
    # In Python, bool is an int; in a job file, `true` is not a number.
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
