"""Helpers that the tests of the command line share, beside their fixtures."""

import os
import subprocess
import sys
from typing import Any

from terminal import VARIABLES

PROGRAM = [sys.executable, "-m", "flstream"]


def environment(**more: str) -> dict[str, str]:
    """This process's variables, less those of :data:`VARIABLES`."""
    return {name: value for name, value in os.environ.items() if name not in VARIABLES} | more


def started(*words: object, **more: Any) -> "subprocess.Popen[str]":
    """A process of the program, whose output is piped unless it is said otherwise."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    return subprocess.Popen([*PROGRAM, *map(str, words)], text=True, **{**piped, **more})
