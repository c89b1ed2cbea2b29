"""Small files of a run, each of them whole and durable or not there at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flstream.model.descriptors import sync_directory


def write_whole(path: Path, text: str) -> None:
    """Write a small file such that it is either whole and durable or as it was before.

    Raises:
        OSError: the disk refused it.
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
    """Where a file is written before it gets its name."""
    return path.with_name(path.name + ".tmp")


def sync_file(path: Path) -> None:
    """Make what is in a file durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
