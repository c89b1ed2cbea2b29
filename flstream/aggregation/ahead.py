"""Reading and writing on threads beside a walk: the next range is read, and the last one written.

Waiting for a pipe or a disk, and copying bytes, does not hold Python's lock. So a second core does
it while the first one folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, repeat
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from flstream.model.layout import Layout
from flstream.model.source import Scratch

T = TypeVar("T")


class SerialExecutor(Generic[T]):
    """A thread that makes calls in the order in which they were submitted, until one fails.

    An executor's futures do the same at a higher price: measured with small ranges of two updates,
    67 microseconds of CPU for each range read ahead, against 38 here.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()
        self._is_closed = False
        self._thread = Thread(target=self._make_calls, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> None:
        """Queue a call."""
        self._calls.put(call)

    def result(self) -> T:
        """Wait for the oldest call whose result was not returned yet; return it or raise its error.

        After an error, no call is made any more, and no result is to be asked for.
        """
        result, error = self._outcomes.get()
        try:
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # there is one of the two
        finally:
            # The error's traceback refers to this frame. Such a cycle would keep the buffers of a
            # failed walk alive, beside those of the next one.
            del error

    def close(self) -> None:
        """Wait for the present call, and make none of those queued. It may be called again."""
        self._is_closed = True
        self._calls.put(None)
        self._thread.join()

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closed:
            try:
                self._outcomes.put((call(), None))
            except BaseException as error:
                self._outcomes.put((None, error))
                return
            del call  # its buffers must not outlive it here


@contextmanager
def read_ahead(steps: Iterator[Callable[[], T]], depth: int) -> Iterator[Iterator[T]]:
    """Make steps on a thread of their own, while the results of earlier ones are used.

    A step is queued when the result of the one ``depth`` before it is requested: results before
    that one are no longer in use by then. An error of a step is raised where its result is
    requested, and ends the steps. When the block is left, no step is running.
    """
    with closing(SerialExecutor[T]("read-ahead")) as reader:

        def results() -> Iterator[T]:
            for place, step in enumerate(chain(steps, repeat(None, depth))):
                if step is not None:
                    reader.submit(step)
                if place >= depth:
                    yield reader.result()

        yield results()


class WriteBehind:
    """A sink that writes a range while the next one is being made.

    Args:
        layout: Layout of the body.
        write: Function that writes a view at an offset of the body.
    """

    def __init__(self, layout: Layout, write: Callable[[int, memoryview], None]) -> None:
        self.layout = layout
        self._write = write
        self._scratches = [Scratch(), Scratch()]
        self._view = memoryview(b"")
        self._writer = SerialExecutor[None]("write-behind")
        self._is_writing = False

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return a buffer for the bytes ``[start, stop)``."""
        self._scratches.reverse()
        self._view = self._scratches[0].take(stop - start)
        return [self._view]

    def commit(self, start: int, stop: int) -> None:
        """Start writing the buffer; raise the error of writing the one before it."""
        self._wait()
        self._writer.submit(partial(self._write, start, self._view))
        self._is_writing = True

    def close(self) -> None:
        """Wait until all is written, and raise the error of the last write."""
        try:
            self._wait()
        finally:
            self._writer.close()

    def _wait(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._writer.result()
