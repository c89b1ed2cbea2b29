"""Contents of messages; those that are too large for the journal are in files.

A content has one byte before it: 0 where it follows, 1 where the name of its file does, which is
its digest.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from flstream.compat.flower.requests import Content
from flstream.errors import SimulationError
from flstream.runs.small_files import temporary_of

FOLDER = "app"
"""Folder below the run directory."""

_HERE, _IN_FILE = b"\0", b"\1"

# Most bytes of a content that travels in a message, and lies in the journal.
_MOST_BYTES = 64 << 10


def put(folder: Path, data: bytes) -> Content:
    """Return a content as it is, if it is small, or the name of a durable file with it."""
    if len(data) <= _MOST_BYTES:
        return _HERE + data
    path = folder / f"{xxhash.xxh3_128_hexdigest(data)}.records"
    if not path.is_file():
        temporary = temporary_of(path.with_suffix(f".{os.getpid()}"))
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    return _IN_FILE + path.name.encode()


def get(folder: Path, content: Content) -> bytes:
    """Return a content.

    Raises:
        SimulationError: Its file is gone or damaged; the message names it.
    """
    if content[:1] == _HERE:
        return content[1:]
    path = folder / Path(content[1:].decode()).name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SimulationError(
            f"{path} cannot be read ({error.strerror}), and a message of the app is in it; start a "
            "new run (leave out --resume)"
        ) from error
    if path.stem != xxhash.xxh3_128_hexdigest(data):
        raise SimulationError(f"{path} was changed; start a new run (leave out --resume)")
    return data
