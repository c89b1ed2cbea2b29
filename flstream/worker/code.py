"""Training code of a job: a script or a class."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.job.train_section import TrainSection


class ScriptCode(NamedTuple):
    """Training script that asks for tasks in a loop.

    Attributes:
        path: Absolute path of the script.
        args: Arguments of all sites: by name, or the words of a command line as one text.
        command: Words of the command that starts it; None to run it in the worker's own process.
    """

    path: Path
    args: Mapping[str, Any] | str
    command: Sequence[str] | None = None

    def words(self, own: Mapping[str, Any]) -> list[str]:
        """The words of a site's command line.

        Args:
            own: Arguments of this site alone, which take the place of others of their name.
        """
        if isinstance(self.args, str):
            return [*shlex.split(self.args), *command_line(own)]
        return command_line({**self.args, **own})


class LearnerCode(NamedTuple):
    """Training class, such as a :class:`flstream.client.learner.Learner`.

    Attributes:
        named: Place of the class: ``/path/to/file.py:Class`` or ``module:Class``.
        arguments: Keyword arguments of its constructor.
        key: Key of the job file that names it.
    """

    named: str
    arguments: dict[str, Any]
    key: str = "train.learner"


TrainCode = ScriptCode | LearnerCode


def train_code(train: TrainSection) -> TrainCode:
    """Return the training code that a section of a job file names."""
    if train.learner is not None:
        assert not isinstance(train.args, str)  # refused for a learner
        return LearnerCode(train.learner, train.args)
    assert train.script is not None  # a job file with neither is refused
    return ScriptCode(train.script, train.args, train.command_words)


def command_line(args: Mapping[str, Any]) -> list[str]:
    """Return a script's arguments as the words of a command line.

    Args:
        args: Values by name. True gives ``--key`` alone, False and None give nothing, a list gives
            ``--key a b``; values other than strings are written as JSON.
    """
    words = []
    for key, value in args.items():
        if value is None or value is False:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        texts = list(map(_word, values))
        if len(texts) == 1 and texts[0].startswith("-"):
            words.append(f"--{key}={texts[0]}")  # which argparse would take for another option
        else:
            words += [f"--{key}", *texts]
    return words


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
