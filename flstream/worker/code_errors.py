"""Running of training code: its errors as sentences, with tracebacks in the log."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import flstream
from flstream.client.site_folder import explain_path
from flstream.debugging import code_failed
from flstream.text import MOST_OF_AN_ERROR, shortened
from flstream.worker.worker_info import WorkerInfo

_PACKAGE = Path(flstream.__file__).parent


class CodeFailure(NamedTuple):
    """Failure of training code.

    Attributes:
        reason: Clause that says why it failed.
        exit_code: Status with which it ended itself; None if it did not.
    """

    reason: str
    exit_code: int | None = None


def run_code(
    run: Callable[[], CodeFailure | None], source: Path, info: WorkerInfo, site: str
) -> CodeFailure | None:
    """Run training code for a site, and return why it failed.

    The function returns its failure if it does not raise it. A child that the code forked ends
    here.
    """
    pid = os.getpid()
    try:
        failure = run()
    except BaseException as error:
        log_traceback(error)
        folder = f"{info.sites_folder}/{site}"
        reason = sentence(error, source) + explain_path(error, str(info.job.folder), folder)
        failure = CodeFailure(reason)
    if os.getpid() != pid:
        os._exit(0 if failure is None else 1)
    return failure


def log_traceback(error: BaseException) -> None:
    """Print the traceback of an error in training code.

    Where the log is on a full disk it is left out: the exception itself must not be lost with it.
    """
    with suppress(OSError):
        code_failed(error)


def sentence(error: BaseException, source: Path) -> str:
    """Describe an exception in a sentence, with the line of the training code.

    Args:
        error: The exception.
        source: Path of the training code's file; of this package's own, where that calls other
            code, whose last file is named.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if str(source).startswith(f"{_PACKAGE}/"):
        source = _own_file([frame.filename for frame in frames]) or source
    lines = [frame.lineno for frame in frames if frame.filename == str(source)]
    where = f"{source.name}, line {lines[-1]}" if lines else source.name
    # On one line: torch lists what does not fit on lines of their own.
    text = shortened(" ".join(_message(error).split()), MOST_OF_AN_ERROR)
    message = f": {text}" if text else ""
    return f"{where} raised {type(error).__name__}{message}"


def _own_file(files: Sequence[str]) -> Path | None:
    """Return the last file that is of no library; None if there is none."""
    libraries = (f"{_PACKAGE}/", *(f"{path}/" for path in sysconfig.get_paths().values()), "<")
    own = [file for file in files if not file.startswith(libraries)]
    return Path(own[-1]) if own else None


def _message(error: BaseException) -> str:
    """Return an exception's message as text that can be sent; empty without one.

    The code of an exception may fail, too, and its text have half of a surrogate pair.
    """
    try:
        text = str(error)
    except Exception:
        return ""
    return text.encode(errors="backslashreplace").decode()
