"""A service that is attacked, and how much this process grows."""

import threading
from collections.abc import Iterator

import psutil
import pytest


class Growth:
    """The most by which this process has grown since it was made, in bytes."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss
        self._peak = self._before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=Growth.__name__, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return max(self._peak, self._process.memory_info().rss) - self._before


@pytest.fixture
def watch_growth() -> Iterator[type[Growth]]:
    """Begins to watch; the test ends it."""
    yield Growth
    assert not [each for each in threading.enumerate() if each.name == Growth.__name__]
