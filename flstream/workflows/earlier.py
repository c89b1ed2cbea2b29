"""The workflow that a job file has run before another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstream.job.problems import did_you_mean
from flstream.job.rules import ValueRule
from flstream.job.workflow_code import built_in_args, built_ins


@dataclass(frozen=True)
class EarlierWorkflow(ValueRule):
    """The name of a workflow that comes with flstream and trains."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return f"one of {', '.join(_names())}; write others in a list, one after another"

    def parse(self, value: Any, folder: Path) -> str:
        """Return the name."""
        if value not in _names():
            raise self.refused(value, did_you_mean(str(value).lower(), _names()))
        return str(value)


def _names() -> list[str]:
    return [name for name in built_ins() if built_in_args(name).has_rounds]
