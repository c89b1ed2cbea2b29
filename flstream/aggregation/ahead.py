"""Threads beside a walk that read the next range and write the last one.

Waiting for a pipe or a disk, and copying bytes, does not hold Python's lock. So a second core does
it while the first one folds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from flstream.model.layout import Layout
from flstream.model.source import Scratch

T = TypeVar("T")


@contextmanager
def read_ahead(steps: Iterator[Callable[[], T]], depth: int) -> Iterator[Iterator[T]]:
    """Run steps on a thread, ahead of the code that uses their results.

    A step is queued when the result of the one ``depth`` before it is requested: results before
    that one are no longer in use by then. An error of a step is raised where its result is
    requested. When the block is left, no step is running, and none will be.
    """
    reader = ThreadPoolExecutor(1, "read-ahead")
    queued: deque[Future[T]] = deque()

    def results() -> Iterator[T]:
        for step in steps:
            queued.append(reader.submit(step))
            if len(queued) > depth:
                yield queued.popleft().result()
        while queued:
            yield queued.popleft().result()

    try:
        yield results()
    finally:
        reader.shutdown(cancel_futures=True)


class WriteBehind:
    """Sink that writes a range on a thread while the next range is made.

    Args:
        layout: Layout of the body.
        write: Function that writes a view at an offset of the body.
    """

    def __init__(self, layout: Layout, write: Callable[[int, memoryview], None]) -> None:
        self.layout = layout
        self._write = write
        self._scratches = [Scratch(), Scratch()]
        self._view = memoryview(b"")
        self._writer = ThreadPoolExecutor(1, "write-behind")
        self._writing: Future[None] | None = None

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return a buffer for the bytes ``[start, stop)``."""
        self._scratches.reverse()
        self._view = self._scratches[0].take(stop - start)
        return [self._view]

    def commit(self, start: int, stop: int) -> None:
        """Write the buffer, or start to where more follow; raise the error of the one before."""
        self._wait()
        if stop == self.layout.nbytes:
            self._write(start, self._view)
        else:
            self._writing = self._writer.submit(self._write, start, self._view)

    def close(self) -> None:
        """Wait for the last write, and raise its error."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
