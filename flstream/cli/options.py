"""What commands have in common: their arguments and options, and what these say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.errors import UsageError
from flstream.units import parse_bytes

JobPath = Annotated[
    Path, typer.Argument(metavar="JOB", help="The job file, or a folder with a job.conf in it.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the job file, such as clients.count=4. May be repeated.",
    ),
]

_MOST_CHUNK_BYTES = 1 << 30


def job_file(named: Path) -> Path:
    """The job file that a path names: itself, or the one in a folder."""
    return named / "job.conf" if named.is_dir() else named


def size(option: str, text: str) -> int:
    """The bytes that an option gives.

    Raises:
        UsageError: it is no size.
    """
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def chunk_size(text: str) -> int:
    """The bytes that ``--chunk-size`` gives.

    Raises:
        UsageError: it is no size that a frame can have.
    """
    found = size("--chunk-size", text)
    if found % 16 or not 16 <= found <= _MOST_CHUNK_BYTES:
        raise UsageError(f"--chunk-size {text}: a multiple of 16 bytes, at most 1 GiB")
    return found
