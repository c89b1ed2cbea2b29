"""The workflow that a job file has run before another one."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from flstream.job.annotations import ValueKind
from flstream.job.problems import did_you_mean
from flstream.job.workflow_code import built_in_args, built_ins


def _names() -> list[str]:
    return [name for name in built_ins() if built_in_args(name).has_rounds]


def _trains(name: str) -> str:
    if name not in _names():
        raise ValueError(did_you_mean(name.lower(), _names()))
    return name


EarlierWorkflow = Annotated[
    str,
    AfterValidator(_trains),
    ValueKind(lambda: f"one of {', '.join(_names())}; write others in a list, one after another"),
]
"""The name of a workflow that comes with flstream and trains."""
