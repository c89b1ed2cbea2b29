"""Import and check of the filters of the user's own that a job file names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flstream.job.own_class import load_own, try_own
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
    made: Callable[..., Any] = load_own(place, args)
    return made


def check_filter(place: str, args: Mapping[str, Any]) -> None:
    """Make a filter of the user's own once, and check that it can be called.

    Raises:
        PydanticCustomError: It cannot be made, or is not a filter.
    """
    made = try_own(place, args)
    try:
        inspect.signature(made).bind("values", "block")
    except (TypeError, ValueError) as error:
        allowed = "a class whose objects are functions of (values, block)"
        raise refuse(Problem("type", given(place), allowed)) from error
