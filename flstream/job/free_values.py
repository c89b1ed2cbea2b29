"""Arguments of the user's code: values that are passed on as written."""

import math
import re
import shlex
from typing import Annotated, Any

from pydantic import AfterValidator

from flstream.job.annotations import ValueKind
from flstream.job.problems import Problem, RefusedValueError, given, join, must_be

_KEY = re.compile(r"[A-Za-z0-9_-]+")


def sound(value: Any) -> Any:
    """Return a plain value, after a check of all its keys and numbers.

    Raises:
        RefusedValueError: Some of them cannot be written back as the same HOCON.
    """
    if problems := _unsound("", value):
        raise RefusedValueError(*problems)
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
            found += _unsound(join(key, name), inner)
        return found
    if isinstance(value, list):
        return [found for inner in value for found in _unsound(key, inner)]
    if isinstance(value, float) and not math.isfinite(value):
        return [Problem(key, given(value), "a finite number")]
    return []


def _splits(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise must_be("quoted as on a shell", str(error)) from error
    return text


FREE_ARGS = "a section of keys and plain values"
"""Description of `FreeArgs`."""

FreeArgs = Annotated[dict[str, Any], AfterValidator(sound), ValueKind(FREE_ARGS)]
"""Arguments of the user's code: plain values under keys of any name.

Values stay as HOCON gives them: `256 MiB` and `10 s` are texts, for the code to read.
"""

CodeArgs = Annotated[
    FreeArgs | Annotated[str, AfterValidator(_splits)],
    ValueKind(f"{FREE_ARGS}, or the words of a command line as one text"),
]
"""Arguments of a script or a learner: a section, or the words of a command line as one text."""

AS_WRITTEN = ValueKind(
    "a plain value: a text, a number, true, false, null, a list or a section of these"
)

PlainValue = Annotated[Any, AfterValidator(sound), AS_WRITTEN]
"""A plain value of any kind, kept as HOCON gives it."""
