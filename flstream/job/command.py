"""The command that starts a training script: its words, and where its program is."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from flstream.job.fields import Allowed, folder_of
from flstream.job.problems import must_be

_INTERPRETERS = ("python", "python3")


def _command(text: str, info: ValidationInfo) -> str:
    """Return a command whose first word is a program that there is; a path becomes absolute."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise must_be("quoted as on a shell", str(error)) from error
    if not words:
        raise ValueError("")  # the words of the type say all
    first, *others = words
    if "/" in first:
        path = os.path.abspath(folder_of(info) / first)
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise ValueError(f"there is no program {path}")
        return text if path == first else shlex.join([path, *others])
    if program_path(first) is None:
        where = f"{Path(sys.executable).parent} or on PATH"
        raise ValueError(f"there is no program {first} in {where}; install it")
    return text


CommandLine = Annotated[
    str,
    AfterValidator(_command),
    Allowed("a launcher and its options, such as torchrun --nproc_per_node=2"),
]
"""The words of a launcher's command line, as on a shell, without the script."""


def command_words(text: str) -> list[str]:
    """Return the words of a command, with the path of its program; its name if there is none.

    Args:
        text: The command, as :class:`CommandLine` parses it.
    """
    first, *others = shlex.split(text)
    return [program_path(first) or first, *others]


def program_path(name: str) -> str | None:
    """Return the path of a program; None without such a program.

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
