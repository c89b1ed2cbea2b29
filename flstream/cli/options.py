"""Exit statuses, and arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.errors import UsageError
from flstream.units import parse_bytes

DONE = 0
"""Exit status of a command that succeeded."""
FAILED = 1
"""Exit status of a job that failed."""
WRONG = 2
"""Exit status of a request with invalid input, such as a mistake in the job file."""
STOPPED = 130
"""Exit status after Ctrl-C, as a shell reports it."""

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
Clients = Annotated[
    int | None,
    typer.Option("-n", "--clients", metavar="N", help="The same as --set clients.count=N."),
]
Rounds = Annotated[
    int | None,
    typer.Option("-r", "--rounds", metavar="N", help="The same as --set rounds=N."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        help="Where workers run: local; inline, in this process for breakpoint() and pdb; "
        "ray or ray:HOST:PORT, on the nodes of a Ray cluster. The same as "
        "--set engine.type=ENGINE.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, and nothing else on stdout.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

_MOST_CHUNK_BYTES = 1 << 30


def engine_settings(engine: str | None) -> dict[str, str | None]:
    """Return the keys that ``--engine`` sets: ``ray:HOST:PORT`` sets two."""
    if engine is None:
        return {}
    kind, _, address = engine.partition(":")
    return {"engine.type": kind, "engine.address": address or None}


def size(option: str, text: str) -> int:
    """Parse an option's value as a size.

    Args:
        option: Name of the option, such as ``--model-size``, for the error message.
        text: Value of the option.

    Returns:
        The size in bytes.

    Raises:
        UsageError: The value is not a size.
    """
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def chunk_size(text: str) -> int:
    """Parse the value of ``--chunk-size``.

    Returns:
        The chunk size in bytes: a multiple of 16, at most 1 GiB.

    Raises:
        UsageError: The value is not a valid chunk size.
    """
    length = size("--chunk-size", text)
    if length % 16 or not 16 <= length <= _MOST_CHUNK_BYTES:
        raise UsageError(f"--chunk-size {text}: a multiple of 16 bytes, at most 1 GiB")
    return length
