"""Zip archives, as ``.npz`` and ``.pt`` files are."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flstream.errors import CheckpointError

AGAIN = "fetch the file again or save it anew"
"""Next step for a damaged file."""
_ENCRYPTED = 1


@contextmanager
def open_archive(path: Path, remedy: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, and give errors of reading it the name of the file.

    Args:
        path: Path of the file.
        remedy: What to do if it is no archive, in the imperative.

    Raises:
        CheckpointError: It is none, is damaged, or is encrypted.
    """
    with reading(path):
        if not zipfile.is_zipfile(path):
            raise CheckpointError(f"{path} is no zip archive, or was cut short; {remedy}")
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.flag_bits & _ENCRYPTED:
                    raise CheckpointError(
                        f"{path}: the member {member.filename!r} is encrypted; save the file "
                        "without a password"
                    )
            yield archive


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Give errors of reading an archive the name of the file.

    Raises:
        CheckpointError: It cannot be read.
    """
    try:
        yield
    # An archive, and the headers in it, can be wrong in any way.
    except (
        OSError, EOFError, ValueError, TypeError, SyntaxError, NotImplementedError, RuntimeError,
        MemoryError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        flaw = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} cannot be read: {flaw}; {AGAIN}") from error


def check_members(path: Path) -> str:
    """Read every member of an archive to its end, which compares its CRC-32.

    Returns:
        A sentence that says so.

    Raises:
        CheckpointError: A member is damaged; the message names it.
    """
    with open_archive(path, AGAIN) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path}: the member {damaged!r} is damaged; {AGAIN}")
        return f"the {len(archive.namelist())} members of the archive match their CRC-32"
