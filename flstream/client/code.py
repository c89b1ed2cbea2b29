"""What a job trains with: a script, or a class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flstream.job.sections import Train


class Script(NamedTuple):
    """A script that asks for tasks in a loop.

    Attributes:
        path: of the script, absolute.
        arguments: its command line.
    """

    path: Path
    arguments: list[str]


class LearnerClass(NamedTuple):
    """A class like :class:`flstream.client.learner.Learner`.

    Attributes:
        named: ``/path/to/file.py:Class`` or ``module:Class``.
        arguments: keyword arguments of its constructor.
    """

    named: str
    arguments: dict[str, Any]


TrainCode = Script | LearnerClass


def train_code(train: Train) -> TrainCode:
    """What a job file says that its sites run."""
    if train.learner is not None:
        return LearnerClass(train.learner, train.args)
    assert train.script is not None  # the job file was refused otherwise
    return Script(train.script, command_line(train.args))


def command_line(args: Mapping[str, Any]) -> list[str]:
    """A script's arguments as ``--key value``; what is not a string is written as JSON."""
    words = []
    for key, value in args.items():
        words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return words
