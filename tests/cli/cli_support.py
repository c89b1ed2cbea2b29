"""What the tests of the command line share beside their fixtures."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

Flstream = Callable[..., subprocess.CompletedProcess[str]]
WriteJob = Callable[..., Path]


def environment() -> dict[str, str]:
    """This process's, less what would change a terminal's width or colours."""
    terminal = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TERMINAL_WIDTH")
    return {name: value for name, value in os.environ.items() if name not in terminal}
