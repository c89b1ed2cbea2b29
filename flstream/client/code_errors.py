"""What training code has raised: a sentence about it, and a traceback in the log."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path

from flstream.text import MOST_OF_AN_ERROR, shortened


def log_traceback() -> None:
    """Print the traceback of the exception that is being handled.

    Where the log is on a full disk it is left out: the exception itself must not be lost with it.
    """
    with suppress(OSError):
        traceback.print_exc()


def sentence(error: BaseException, source: Path) -> str:
    """Return a sentence that describes an exception, with the line of the training code.

    Args:
        error: The exception.
        source: Path of the training code's file.
    """
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(source)
    ]
    where = f"{source.name}, line {lines[-1]}" if lines else source.name
    # On one line: torch lists what does not fit on lines of their own.
    text = shortened(" ".join(str(error).split()), MOST_OF_AN_ERROR)
    message = f": {text}" if text else ""
    return f"{where} raised {type(error).__name__}{message}"
