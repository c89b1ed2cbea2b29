"""Reading and writing beside a walk: the next range comes in, and the last goes out, meanwhile.

What waits for a pipe or a disk, or copies bytes, does not hold Python's lock. So a second core does
it while the first one folds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Event
from typing import TypeVar

from flstream.model.body import Scratch
from flstream.model.layout import Layout

T = TypeVar("T")


@contextmanager
def read_ahead(steps: Iterator[Callable[[], T]], depth: int) -> Iterator[Iterator[T]]:
    """Do steps in turn on a thread of their own, while the results of those before them are used.

    Args:
        steps: what to do. A step is put in line when the result of the one ``depth`` before it is
            asked for.
        depth: how many steps may be done or in line whose results were not asked for.

    Yields:
        The results. What a step raises is raised where its result is asked for, and no later step
        is done. When the block is left, no step is being done any more.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        line: deque[Future[T]] = deque()
        over = Event()

        def do(step: Callable[[], T]) -> T:
            if over.is_set():
                raise CancelledError
            try:
                return step()
            except BaseException:
                over.set()
                raise

        def results() -> Iterator[T]:
            line.extend(pool.submit(do, step) for step in islice(steps, depth))
            while line:
                result = line.popleft().result()
                line.extend(pool.submit(do, step) for step in islice(steps, 1))
                yield result

        try:
            yield results()
        finally:
            over.set()


class WriteBehind:
    """A sink that writes a range while the next one is being made.

    Args:
        layout: of what is written.
        write: writes a view at an offset of the body.
    """

    def __init__(self, layout: Layout, write: Callable[[int, memoryview], None]) -> None:
        self.layout = layout
        self._write = write
        self._scratches = [Scratch(), Scratch()]
        self._view = memoryview(b"")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._writing: Future[None] | None = None

    def views(self, start: int, stop: int) -> list[memoryview]:
        """A buffer for the bytes ``[start, stop)``."""
        self._scratches.reverse()
        self._view = self._scratches[0].take(stop - start)
        return [self._view]

    def commit(self, start: int, stop: int) -> None:
        """Have the buffer written; raise what writing the one before it raised."""
        self._wait()
        self._writing = self._pool.submit(self._write, start, self._view)

    def close(self) -> None:
        """Wait until all is written, and raise what that raised."""
        try:
            self._wait()
        finally:
            self._pool.shutdown()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
