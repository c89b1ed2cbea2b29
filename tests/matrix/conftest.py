"""Says which cases were drawn; takes samples of memory, which no case looks at, once a second."""

import pytest
from matrix_draw import DRAW, draw

from flstream.telemetry import memory


@pytest.fixture(autouse=True)
def rare_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample seldom: a fifth of the matrix's CPU time goes into it otherwise."""
    monkeypatch.setattr(memory, "INTERVAL", 1.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that repeats the draw."""
    command = f"make test ARGS=tests/matrix {DRAW}={draw()}"
    terminalreporter.write_line(f"cases drawn by the hash of flstream/; to repeat: {command}")
