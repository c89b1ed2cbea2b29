"""Mistakes in a job file, as records and as one message."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flstream.errors import UsageError

MISSING = "missing"
UNKNOWN = "unknown key"


@dataclass(frozen=True)
class Problem:
    """One mistake in a job file; its `str()` is one line."""

    key: str
    """Dotted key such as `clients.count`; empty for a mistake that concerns the whole file."""
    state: str
    """State of the key in the file: `given "abc"`, `missing`, `unknown key`; empty in a refusal
    of the value that the file gives."""
    allowed: str = ""
    """Description of allowed values, to follow "must be"."""
    hint: str = ""
    """Suggestion of a next step, such as the nearest valid key."""

    def __str__(self) -> str:
        """Return the mistake as one line of a message."""
        must_be = f"must be {self.allowed}" if self.allowed else ""
        text = "; ".join(part for part in (self.state, must_be, self.hint) if part)
        return f"{self.key}: {text}" if self.key else text

    def below(self, key: str) -> "Problem":
        """Return the problem with its key below another one."""
        return replace(self, key=join(key, self.key))


class RefusedValueError(ValueError):
    """Refusal of a value by a validator, with problems in its own words.

    Their keys are relative to the value's: `""` is the value itself.
    """

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__(*problems)

    def __str__(self) -> str:
        """Return a line for each problem."""
        return "\n".join(map(str, self.problems))


class JobError(UsageError):
    """A job file cannot be used: every mistake found in it, in one message.

    Args:
        path: Path of the job file, or the name of another source of the job.
        problems: Mistakes found in it.
    """

    def __init__(self, path: Path | str, problems: Iterable[Problem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__(path, self.problems)

    def __str__(self) -> str:
        """Return a line that names the file, then a line for each mistake."""
        if len(self.problems) == 1 and not self.problems[0].key:
            return f"{self.path}: {self.problems[0]}"
        count = len(self.problems)
        lines = [f"{self.path} has {count} mistake{'s' if count != 1 else ''}:"]
        return "\n  ".join([*lines, *map(str, self.problems)])


def must_be(allowed: str, hint: str = "") -> RefusedValueError:
    """Return the refusal of a value of the right type that is not allowed."""
    return RefusedValueError(Problem("", "", allowed, hint))


def join(key: str, inner: str) -> str:
    """Join a key with the name of a key inside it, or with an index (`[1]`)."""
    if not key or not inner:
        return key or inner
    return f"{key}{inner}" if inner.startswith("[") else f"{key}.{inner}"


def given_clause(value: Any) -> str:
    """Return the clause `given <value>`, with the value shortened to fit on a line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"given {text if len(text) <= 80 else text[:77] + '...'}"


def hint_of_name(name: object) -> str:
    """Return the hint about a name's first letter of another alphabet, if any."""
    foreign = next((char for char in str(name) if char.isalpha() and not char.isascii()), "")
    return f"{foreign} is none of the letters a to z and A to Z" if foreign else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the nearest known name; empty if none is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""
