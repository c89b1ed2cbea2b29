"""Checks of what a workflow passes to the methods of its run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flstream.errors import WorkflowError
from flstream.server.program_view import Model


def check_model(method: str, model: object) -> None:
    """Refuse what is no model.

    Raises:
        WorkflowError: The message names the method and what it was given.
    """
    if not isinstance(model, Model):
        raise WorkflowError(
            f"run.{method}() was given a {type(model).__name__} as its model; give it what "
            "run.initial_model(), run.fold() or run.adopt() returned"
        )


def check_name(method: str, name: object) -> None:
    """Refuse what is no name.

    Raises:
        WorkflowError: The message names the method and what it was given.
    """
    if not isinstance(name, str):
        raise WorkflowError(f"run.{method}() was given {name!r} as a name; give it text")


def check_values(argument: str, values: object) -> None:
    """Refuse what are no values by name.

    Raises:
        WorkflowError: The message names the argument and what it was given.
    """
    if values is not None and not isinstance(values, Mapping):
        raise WorkflowError(
            f"run.train() was given a {type(values).__name__} as {argument}; give it a dict of "
            "plain values by name"
        )


def check_aggregators(sites: object) -> None:
    """Refuse what is no list of sites, of which one is to fold.

    Raises:
        WorkflowError: The message has what it is.
    """
    if isinstance(sites, str) or not isinstance(sites, Sequence):
        raise WorkflowError(f"run.fold() was given at={sites!r}; give it a list of sites' names")
    if not sites:
        raise WorkflowError(
            "run.fold() was given no site to fold at; those that may fold are asked no more "
            "(clients.bench_after), so name others, or leave out at"
        )


def check_training(sites: object, min_updates: Any, timeout: Any) -> None:
    """Refuse arguments of a training that are of the wrong kind, or out of range.

    Raises:
        WorkflowError: The message names the argument and its value.
    """
    if isinstance(sites, str) or not isinstance(sites, Sequence):
        raise WorkflowError(
            f"run.train() was given {sites!r} as its sites; give it a list of their names"
        )
    is_count = isinstance(min_updates, int) and not isinstance(min_updates, bool)
    if min_updates is not None and not (is_count and min_updates >= 0):
        raise WorkflowError(
            f"run.train() was given min_updates={min_updates!r}; give it a whole number from 0, or "
            "None for clients.min_updates"
        )
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout < math.inf):
        raise WorkflowError(
            f"run.train() was given timeout={timeout!r}; give it seconds above 0, or None for "
            "clients.round_timeout"
        )
