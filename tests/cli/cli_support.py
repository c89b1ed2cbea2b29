"""What the tests of the command line share beside their fixtures."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

Flstream = Callable[..., subprocess.CompletedProcess[str]]
WriteJob = Callable[..., Path]


# What would change a terminal's width or colours.
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TERMINAL_WIDTH")


def environment() -> dict[str, str]:
    """This process's variables, less those of :data:`TERMINAL`."""
    return {name: value for name, value in os.environ.items() if name not in TERMINAL}
