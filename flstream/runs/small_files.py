"""Atomic and durable writing of a run's small files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flstream.model.descriptors import sync_directory


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically and durably: after a crash it is either whole or as it was before.

    Args:
        path: Path of the file.
        text: Its new content.

    Raises:
        OSError: It cannot be written.
    """
    temporary = temporary_of(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        sync_file(temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_of(path: Path) -> Path:
    """Return the path under which a file is written before it is renamed to ``path``."""
    return path.with_name(path.name + ".tmp")


def sync_file(path: Path) -> None:
    """Make a file's content durable.

    Raises:
        OSError: The file system reports an error.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


def unused_name(path: Path) -> Path:
    """A name beside a path for what is there, and was not made by the run, to be moved to."""
    number = 1
    while os.path.lexists(unused := path.with_name(f"{path.stem}.found-{number}{path.suffix}")):
        number += 1
    return unused
