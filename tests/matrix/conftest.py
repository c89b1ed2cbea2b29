"""Says which kills were drawn."""

import pytest
from matrix_draw import DRAW, draw


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that repeats the draw of kills."""
    command = f"make test ARGS=tests/matrix/test_kills.py {DRAW}={draw()}"
    terminalreporter.write_line(f"kills drawn by the hash of flstream/; to repeat: {command}")
