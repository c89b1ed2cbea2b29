"""Says which cases were drawn."""

import pytest
from matrix_draw import DRAW, draw


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that repeats the draw."""
    command = f"make test ARGS=tests/matrix {DRAW}={draw()}"
    terminalreporter.write_line(f"cases drawn by the hash of flstream/; to repeat: {command}")
