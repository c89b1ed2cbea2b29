"""The file that events are kept in, a line each: one writer at a time, and no half lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from flstream.errors import SimulationError
from flstream.telemetry.events import AnyEvent, encode_event
from flstream.telemetry.locks import lock_file

# How much of the file's end is read at a time, in search of the last whole line.
_TAIL_BYTES = 1 << 16


class EventLog:
    """Appends events to a file, a line each, so that what has happened survives a crash.

    A line that an earlier process was writing when it died is cut off first, so that every line but
    the last is always whole. The file is locked: there is one writer at a time.

    Args:
        path: of the file; it is made if need be.
        patience: seconds to wait for another writer to end.

    Raises:
        SimulationError: another process still writes to the file, or it cannot be written.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        self._path = path
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
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def write(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Append one event.

        Args:
            event: what happened.
            durable: return only when this event, and all before it, would survive a power cut.

        Raises:
            SimulationError: the disk refused it. No part of it is left in the file.
        """
        line = memoryview(encode_event(event) + b"\n")
        size = len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            # Half a line would spoil the next one, and with it the whole journal.
            with suppress(OSError):
                self._file.truncate(self._end)
            raise self._failed(error) from error
        self._end += size

    def close(self) -> None:
        """Close the file, and let others write to it."""
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
    """How many bytes of a file are whole lines."""
    stop = os.fstat(fd).st_size
    while stop > 0:
        start = max(stop - _TAIL_BYTES, 0)
        found = os.pread(fd, stop - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        stop = start
    return 0


class WholeLines:
    """The lines of a file of events, but for a last one that was being written at a crash.

    Args:
        path: of the file.
        most: bytes that a line may have. One that is longer comes in pieces without an end, none
            of which is an event.

    Attributes:
        most: as given; whoever reads may change it from one line to the next.
        number: of the line that came last, from 1.

    Raises:
        OSError: while it is read.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self.most = most
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while line := file.readline(self.most):
                if not line.endswith(b"\n") and len(line) < self.most:
                    return
                self.number += 1
                yield line
