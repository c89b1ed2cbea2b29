"""Import of classes of the user's own that a job file names together with their arguments."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flstream.job.code import first_on_path, import_once
from flstream.job.problems import Problem, given
from flstream.job.rules import refuse


def load_own(place: str, args: Mapping[str, Any]) -> Any:
    """Make an object of a class, with the files beside its file importable from then on.

    Args:
        place: Absolute place of the class.
        args: Keyword arguments of the class.

    Raises:
        Exception: Whatever its code raises.
    """
    where = place.rpartition(":")[0]
    made = _made(place, args)
    if where.endswith(".py"):
        first_on_path(Path(where))
    return made


def try_own(place: str, args: Mapping[str, Any]) -> Any:
    """Make an object of a class once, to be checked.

    Raises:
        PydanticCustomError: It cannot be made.
    """
    try:
        return _made(place, args)
    except (Exception, SystemExit) as error:
        allowed = "a class that takes these arguments"
        raise refuse(Problem("type", given(place), allowed, _sentence(place, error))) from error


def _made(place: str, args: Mapping[str, Any]) -> Any:
    where, _, name = place.rpartition(":")
    return getattr(import_once(where), name)(**args)


def _sentence(place: str, error: BaseException) -> str:
    """Describe an error, with the line of the user's code."""
    where = place.rpartition(":")[0]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == where]
    at = f"{Path(where).name} line {lines[-1]}" if lines else Path(place).name
    return f"{at} raised {type(error).__name__}: {error}".rstrip(": ")
