"""Import of something that a job file names, when the file is loaded."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from flstream.job.code import import_once
from flstream.job.problems import Problem, did_you_mean, given
from flstream.job.rules import refuse


def import_named(value: str, place: str, what: str) -> Any:
    """Import an object that a job file names, unless this process has it already.

    Args:
        value: Value as the job file gives it, for messages.
        place: Place of the object: `package.module:name` or `/abs/path.py:name`.
        what: What the object is to be, such as ``function``, for messages.

    Raises:
        PydanticCustomError: Its module cannot be imported, or has no such name.
    """
    where, _, name = place.rpartition(":")
    try:
        module = import_once(where)
    except (Exception, SystemExit) as error:
        raise refuse(_import_failed(value, where, error)) from error
    if not hasattr(module, name):
        allowed = f"the name of a {what} at the top level of {where}"
        raise refuse(Problem("", given(value), allowed, did_you_mean(name, vars(module))))
    return getattr(module, name)


def _import_failed(value: str, where: str, error: BaseException) -> Problem:
    """Return the problem of a failed import, with the line of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == where] or frames[-1:]
    place = f"{Path(own[-1].filename).name} line {own[-1].lineno}"
    hint = f"{place} raised {type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, ModuleNotFoundError):
        hint += "; install it where flstream is, or put it beside the file"
    return Problem("", given(value), "in Python that can be imported", hint)
