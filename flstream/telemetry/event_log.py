"""Journal file: one event a line, with a check of the line before; one writer."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from flstream.errors import SimulationError
from flstream.telemetry.events import NO_CHECK, AnyEvent, checks_of, encode_lines
from flstream.telemetry.locks import lock_file

# Limit for any line: a message of a site has at most 64 MiB, such as one with thousands of metrics,
# and a round of a million sites about as much. A file that is no journal is noticed before it was
# read whole.
_MOST_BYTES = 128 << 20


class EventLog:
    """Writer of events to a file, one a line, which survive a crash.

    Each line carries the check of the line before; the first one that is added, that of the last
    whole line that is there.

    A partial line that an earlier process left at the end is removed first, so that every line but
    the last is always whole. The file is locked, so that it has one writer at a time.

    Args:
        path: Path of the file, which is created if it does not exist.
        end: Length in bytes of the lines that are kept; None for all whole lines.

    Raises:
        SimulationError: Another process still writes to the file, or it cannot be written.
    """

    def __init__(self, path: Path, end: int | None = None) -> None:
        self._path = path
        # A line that two threads both put after the same one would damage the journal.
        self._turn = threading.Lock()
        with ExitStack() as stack:
            try:
                self._file = stack.enter_context(path.open("a+b", buffering=0))
                _lock(self._file.fileno(), path, 0.0)
                self._end, self._check = _end_of_last_line(self._file.fileno(), end)
                self._file.truncate(self._end)
            except OSError as error:
                raise self._failed(error) from error
            stack.pop_all()

    def write(self, *events: AnyEvent, durable: bool = False) -> None:
        """Append events. Any thread may do so.

        Args:
            events: Events to append, in order.
            durable: Whether to return only once these events, and all before them, would survive a
                power cut.

        Raises:
            SimulationError: The disk refused the events, or the file was removed. No part of them
                is left in the file.
        """
        with self._turn:
            lines = encode_lines(events, self._check)
            rest = memoryview(lines)
            try:
                if not os.fstat(self._file.fileno()).st_nlink:
                    raise FileNotFoundError(errno.ENOENT, "it was removed while the run went on")
                while rest:
                    rest = rest[self._file.write(rest) :]
                if durable:
                    os.fsync(self._file.fileno())
            except OSError as error:
                # A partial line would make the next one, and so the whole journal, unreadable.
                with suppress(OSError):
                    self._file.truncate(self._end)
                raise self._failed(error) from error
            self._end += len(lines)
            if (checks := checks_of(lines)) is not None:
                self._check = checks.check

    def close(self) -> None:
        """Close the file, and release its lock."""
        self._file.close()

    def _failed(self, error: OSError) -> SimulationError:
        return SimulationError(
            f"{self._path} cannot be written: {error.strerror}; put that right, and go on "
            "with --resume"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def await_writer(path: Path, patience: float) -> None:
    """Wait until no process writes to a journal.

    Args:
        path: Path of the file, which may be missing.
        patience: Seconds to wait.

    Raises:
        SimulationError: A process still writes to it, or it cannot be opened.
    """
    try:
        with path.open("r+b") as file:
            _lock(file.fileno(), path, patience)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SimulationError(
            f"{path} cannot be written: {error.strerror}; put that right, and go on with --resume"
        ) from error


def _lock(fd: int, path: Path, patience: float) -> None:
    if not lock_file(fd, patience):
        raise SimulationError(
            f"another process still writes to {path}; wait until it has ended, or end it"
        )


def _end_of_last_line(fd: int, end: int | None) -> tuple[int, bytes]:
    """Return the length in bytes of a file's whole lines, and the last one's check."""
    size = os.fstat(fd).st_size
    if not size:
        return 0, NO_CHECK
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as content:
        end = content.rfind(b"\n", 0, size if end is None else end) + 1
        checks = checks_of(content[max(end - 100, 0) : end])
    # Without checks that line is damaged, and no reader will take what follows it.
    return end, NO_CHECK if checks is None else checks.check


class WholeLines:
    """Iterator over the whole lines of an event file.

    A line that is too long for an event is returned in pieces, none of which is an event.

    Args:
        path: Path of the file.
        start: Where the first line begins, in bytes.

    Attributes:
        number: Number of the last line that was returned, from 1.
        start: Where that line begins, in bytes.
        end: Where the next one begins.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self.number = 0
        self.start = self.end = start

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self.end)
            while line := file.readline(_MOST_BYTES):
                if not line.endswith(b"\n") and len(line) < _MOST_BYTES:
                    return
                self.number += 1
                self.start, self.end = self.end, self.end + len(line)
                yield line
