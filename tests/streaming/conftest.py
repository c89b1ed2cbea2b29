"""A service with receivers, for each test; and how much this process grows while it is attacked."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Harness, open_harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    with open_harness() as harness:
        yield harness


def highest() -> int:
    """The most bytes that this process has had since its mark was put down."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


@pytest.fixture
def watch_growth() -> Callable[[], Callable[[], int]]:
    """Begins to watch; what that returns, returns the most bytes beyond the first since then."""

    def begin() -> Callable[[], int]:
        Path("/proc/self/clear_refs").write_text("5")  # down to what it has now
        before = highest()
        return lambda: highest() - before

    return begin
