"""Atomic and durable writing of a run's small files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flstream.model.descriptors import sync_directory


def write_whole(path: Path, text: str) -> None:
    """Write a file durably and at once: after a crash, it is whole or as before.

    Args:
        path: Path of the file.
        text: Its new content.

    Raises:
        OSError: It cannot be written.
    """
    temporary = temporary_of(path)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_of(path: Path) -> Path:
    """Return the temporary path of a file before it is renamed to ``path``."""
    return path.with_name(path.name + ".tmp")


def sync_file(path: Path) -> None:
    """Make a file's content durable.

    Raises:
        OSError: The file system reports an error.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


def unused_name(path: Path) -> Path:
    """Return a free name beside a path, for a file that the run did not make."""
    number = 1
    while os.path.lexists(unused := path.with_name(f"{path.stem}.found-{number}{path.suffix}")):
        number += 1
    return unused
