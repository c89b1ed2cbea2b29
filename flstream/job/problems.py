"""What is wrong with a job file, as records and as one message."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flstream.errors import UsageError

MISSING = "missing"
UNKNOWN = "unknown key"


@dataclass(frozen=True)
class Problem:
    """One mistake in a job file; `str()` of it is one line."""

    key: str
    """Key path such as `clients.count`; empty where the mistake is about the whole file."""
    given: str
    """What the file says: `given "abc"`, `missing`, `unknown key`."""
    allowed: str = ""
    """What would be right, to be read after "must be"."""
    hint: str = ""
    """A next step, such as the nearest valid key."""

    def __str__(self) -> str:
        """Return the mistake as one line of a message."""
        must_be = f"must be {self.allowed}" if self.allowed else ""
        text = "; ".join(part for part in (self.given, must_be, self.hint) if part)
        return f"{self.key}: {text}" if self.key else text


class JobError(UsageError):
    """A job file cannot be used: every mistake found in it, in one message."""

    def __init__(self, path: Path, problems: Iterable[Problem]) -> None:
        """Gather the mistakes of the job file at `path`."""
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


def given(value: Any) -> str:
    """Say what a file gives for a key, shortened so that it fits on a line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"given {text if len(text) <= 80 else text[:77] + '...'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names, or nothing."""
    return ask_for(get_close_matches(name, list(known), n=1, cutoff=0.6))


def ask_for(names: Sequence[str]) -> str:
    """Return a question that offers these names, or nothing when there are none."""
    return f"did you mean {' or '.join(names)}?" if names else ""
