"""How much this process grows while it is attacked."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest


@pytest.fixture
def watch_growth() -> Iterator[Callable[[], Callable[[], int]]]:
    """Begins to watch; what that returns ends it, and returns the most bytes beyond the first."""
    process, done = psutil.Process(), threading.Event()

    def watched() -> int:
        most = 0
        while not done.wait(0.005):
            most = max(most, process.memory_info().rss)
        return most

    def begin() -> Callable[[], int]:
        before, most = process.memory_info().rss, executor.submit(watched)

        def end() -> int:
            done.set()
            return max(most.result(), process.memory_info().rss) - before

        return end

    with ThreadPoolExecutor(1) as executor:
        yield begin
        done.set()
