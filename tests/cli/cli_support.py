"""Helpers that the tests of the command line share, beside their fixtures."""

import os
import subprocess
import sys
from typing import Any

PROGRAM = [sys.executable, "-m", "flstream"]
# What would change a terminal's width or colours.
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TERMINAL_WIDTH")


def environment(**more: str) -> dict[str, str]:
    """This process's variables, less those of :data:`TERMINAL`."""
    return {name: value for name, value in os.environ.items() if name not in TERMINAL} | more


def started(*words: object, **more: Any) -> "subprocess.Popen[str]":
    """A process of the program, whose output is piped unless it is said otherwise."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    return subprocess.Popen([*PROGRAM, *map(str, words)], text=True, **{**piped, **more})
