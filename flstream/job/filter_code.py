"""Import and check of the filters of the user's own that a job file names."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flstream.job.code import first_on_path, import_once
from flstream.job.problems import Problem, given
from flstream.job.rules import refuse


def load_filter(place: str, args: Mapping[str, Any]) -> Callable[..., Any]:
    """Make a filter of the user's own, with the files beside its file importable from then on.

    Args:
        place: Absolute place of its class.
        args: Keyword arguments of its class.

    Raises:
        Exception: Whatever its code raises.
    """
    where = place.rpartition(":")[0]
    made = _made(place, args)
    if where.endswith(".py"):
        first_on_path(Path(where))
    return made


def check_filter(place: str, args: Mapping[str, Any]) -> None:
    """Make a filter of the user's own once, and check that it can be called.

    Raises:
        PydanticCustomError: It cannot be made, or is not a filter.
    """
    try:
        made = _made(place, args)
    except (Exception, SystemExit) as error:
        allowed = "a class that takes these arguments"
        raise refuse(Problem("type", given(place), allowed, _sentence(place, error))) from error
    try:
        inspect.signature(made).bind("values", "block")
    except (TypeError, ValueError) as error:
        allowed = "a class whose objects are functions of (values, block)"
        raise refuse(Problem("type", given(place), allowed)) from error


def _made(place: str, args: Mapping[str, Any]) -> Callable[..., Any]:
    where, _, name = place.rpartition(":")
    made: Callable[..., Any] = getattr(import_once(where), name)(**args)
    return made


def _sentence(place: str, error: BaseException) -> str:
    """Describe an error, with the line of the user's code."""
    where = place.rpartition(":")[0]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == where]
    at = f"{Path(where).name} line {lines[-1]}" if lines else Path(place).name
    return f"{at} raised {type(error).__name__}: {error}".rstrip(": ")
