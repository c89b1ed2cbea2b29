"""The command that starts a training script: its words, and where its program is."""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstream.job.problems import Problem, given
from flstream.job.rules import ValueRule, refuse

_INTERPRETERS = ("python", "python3")


@dataclass(frozen=True)
class CommandLine(ValueRule):
    """The words of a launcher's command line, as on a shell, without the script.

    A program that is named by a path resolves to an absolute one; others keep their names.
    """

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a launcher and its options, such as torchrun --nproc_per_node=2"

    def parse(self, value: Any, folder: Path) -> str:
        """Return the text, if its first word is a program that there is."""
        if not isinstance(value, str):
            raise self.refused(value)
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise refuse(Problem("", given(value), "quoted as on a shell", str(error))) from error
        if not words:
            raise self.refused(value)
        first, *others = words
        if "/" in first:
            path = os.path.abspath(folder / first)
            if not os.access(path, os.X_OK) or os.path.isdir(path):
                raise self.refused(value, f"there is no program {path}")
            return value if path == first else shlex.join([path, *others])
        if program_path(first) is None:
            where = f"{Path(sys.executable).parent} or on PATH"
            raise self.refused(value, f"there is no program {first} in {where}; install it")
        return value


def command_words(text: str) -> list[str]:
    """Return the words of a command, with the path of its program; its name if there is none.

    Args:
        text: The command, as :class:`CommandLine` parses it.
    """
    first, *others = shlex.split(text)
    return [program_path(first) or first, *others]


def program_path(name: str) -> str | None:
    """Return the path of a program; None if there is none of that name.

    A program beside this interpreter comes first, so that it is that of the same environment; and
    ``python`` and ``python3`` are this interpreter.

    Args:
        name: Name of the program, or its path.
    """
    if name in _INTERPRETERS:
        return sys.executable
    if "/" in name:
        return name
    return shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
