"""Rules for arguments of the user's code: values that are passed on as written."""

import inspect
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from flstream.job.problems import Problem, given
from flstream.job.rules import ValueRule, refuse
from flstream.job.values import render_value

_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class FreeArgs(ValueRule):
    """Arguments of the user's code: plain values under keys of any name.

    Values stay as HOCON gives them: `256 MiB` and `10 s` are texts, for the code to read.
    """

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a section of keys and plain values"

    def parse(self, value: Any, folder: Path) -> dict[str, Any]:
        """Return the arguments as given, after a check of all their keys and numbers."""
        if not isinstance(value, dict):
            raise self.refused(value)
        problems = list(_unsound("", value))
        if problems:
            raise refuse(*problems)
        return value


@dataclass(frozen=True)
class CodeArgs(ValueRule):
    """Arguments of a script or a learner: a section, or the words of a command line as one text."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"{FreeArgs().allowed}, or the words of a command line as one text"

    def parse(self, value: Any, folder: Path) -> dict[str, Any] | str:
        """Return the arguments as given, after a check of their keys, numbers and quotes."""
        if isinstance(value, dict):
            return FreeArgs().parse(value, folder)
        if not isinstance(value, str):
            raise self.refused(value)
        try:
            shlex.split(value)
        except ValueError as error:
            raise refuse(Problem("", given(value), "quoted as on a shell", str(error))) from error
        return value


def _unsound(key: str, value: Any) -> list[Problem]:
    """Return a problem for each key or number that cannot be written back as the same HOCON."""
    if isinstance(value, dict):
        found = [
            Problem(key, f"key {given(name).removeprefix('given ')}", "letters, digits, _ and -")
            for name in value
            if not _KEY.fullmatch(name)
        ]
        for name, inner in value.items():
            found += _unsound(f"{key}.{name}".lstrip("."), inner)
        return found
    if isinstance(value, list):
        return [found for inner in value for found in _unsound(key, inner)]
    if isinstance(value, float) and not math.isfinite(value):
        return [Problem(key, given(value), "a finite number")]
    return []


@dataclass(frozen=True)
class PlainValue(ValueRule):
    """A plain value of any kind, kept as HOCON gives it."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a plain value: a text, a number, true, false, null, a list or a section of these"

    def parse(self, value: Any, folder: Path) -> Any:
        """Return the value as given, after a check of all its keys and numbers."""
        problems = _unsound("", value)
        if problems:
            raise refuse(*problems)
        return value


@dataclass(frozen=True)
class PlainType(ValueRule):
    """Any value of a type; the rule of a key whose definition has no other rule."""

    type: Any
    """Type annotation, with its constraints."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        plain = self.type.__origin__ if get_origin(self.type) is Annotated else self.type
        return f"of the type {inspect.formatannotation(plain)}"

    def parse(self, value: Any, folder: Path) -> Any:
        """Return the value converted to the type."""
        try:
            return TypeAdapter(self.type).validate_python(value)
        except ValidationError as error:
            raise self.refused(value, error.errors()[0]["msg"]) from None

    def render(self, value: Any) -> str:
        """Return HOCON text that parses to this value."""
        return render_value(to_jsonable_python(value))
