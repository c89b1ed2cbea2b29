"""The journal file: one event a line that follows the line before, and one writer at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from flstream.errors import SimulationError
from flstream.telemetry.events import NO_CHECK, AnyEvent, checks_of, encode_lines
from flstream.telemetry.locks import lock_file

# Bytes of the file's end that are read at a time, in search of the last whole line.
_TAIL_BYTES = 1 << 16


class EventLog:
    """Appends events to a file, one a line, so that they survive a crash.

    Each line carries the check of the line before; the first one that is added, that of the last
    whole line that is there.

    A partial line that an earlier process left at the end is removed first, so that every line but
    the last is always whole. The file is locked, so that it has one writer at a time.

    Args:
        path: Path of the file, which is created if it does not exist.
        patience: Seconds to wait for another writer to end.

    Raises:
        SimulationError: Another process still writes to the file, or it cannot be written.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        self._path = path
        # A line that two threads both put after the same one would damage the journal.
        self._turn = threading.Lock()
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise self._failed(error) from error
        try:
            if not lock_file(self._file.fileno(), patience):
                raise SimulationError(
                    f"another process still writes to {path}; wait until it has ended, or end it"
                )
            self._end = _end_of_last_line(self._file.fileno())
            self._file.truncate(self._end)
            self._check = _last_check(self._file.fileno(), self._end)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def write(self, *events: AnyEvent, durable: bool = False) -> None:
        """Append events. Any thread may do so.

        Args:
            events: Events to append, in order.
            durable: Whether to return only once these events, and all before them, would survive a
                power cut.

        Raises:
            SimulationError: The disk refused the events. No part of them is left in the file.
        """
        with self._turn:
            lines = encode_lines(events, self._check)
            rest = memoryview(lines)
            try:
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
            self._check = _check_at_end(lines, self._check)

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


def _end_of_last_line(fd: int) -> int:
    """Return the length in bytes of a file's whole lines."""
    stop = os.fstat(fd).st_size
    while stop > 0:
        start = max(stop - _TAIL_BYTES, 0)
        newline = os.pread(fd, stop - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        stop = start
    return 0


def _last_check(fd: int, end: int) -> bytes:
    """Return the check of a file's last line, which ends at a place in bytes."""
    start = max(end - _TAIL_BYTES, 0)
    # Without a check that line is damaged, and no reader will take what follows it.
    return _check_at_end(os.pread(fd, end - start, start), NO_CHECK)


def _check_at_end(lines: bytes, otherwise: bytes) -> bytes:
    checks = checks_of(lines)
    return checks.check if checks is not None else otherwise


class WholeLines:
    """Iterator over the lines of an event file, without a partial last line.

    Args:
        path: Path of the file.
        most: Most bytes of a line. A longer one is returned in pieces, none of which is an event.
        start: Where the first line begins, in bytes.

    Attributes:
        most: Most bytes of the next line; the reader may change it from line to line.
        number: Number of the last line that was returned, from 1.
        start: Where that line begins, in bytes.
        end: Where the next one begins.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, most: int, start: int = 0) -> None:
        self._path = path
        self.most = most
        self.number = 0
        self.start = self.end = start

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self.end)
            while line := file.readline(self.most):
                if not line.endswith(b"\n") and len(line) < self.most:
                    return
                self.number += 1
                self.start, self.end = self.end, self.end + len(line)
                yield line
