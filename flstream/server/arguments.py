"""Checks of what a workflow passes to the methods of its run."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.rules import AggregationRule
from flstream.errors import WorkflowError
from flstream.job.bodies import RESERVED_NAMES, is_body_name
from flstream.model.joined import MAIN
from flstream.server.program_view import Model, SiteModel


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


def check_values(method: str, argument: str, values: object) -> None:
    """Refuse what are no values by name.

    Raises:
        WorkflowError: The message names the method, the argument and what it was given.
    """
    if values is not None and not isinstance(values, Mapping):
        raise WorkflowError(
            f"run.{method}() was given a {type(values).__name__} as {argument}; give it a dict of "
            "plain values by name"
        )


def check_scored(model: object, *, counts: bool) -> None:
    """Refuse what cannot be scored.

    Raises:
        WorkflowError: The message says what it was given.
    """
    if isinstance(model, Model) or (isinstance(model, SiteModel) and not counts):
        return
    given = "the model of a site with counts=True" if counts else f"a {type(model).__name__}"
    raise WorkflowError(
        f"run.score() was given {given}; give it what run.initial_model(), run.fold() or "
        "run.adopt() returned, or, without counts, a model of run.collect()"
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
            "(clients.suspend_after), so name others, or leave out at"
        )


def check_training(sites: object, min_updates: Any, timeout: Any) -> None:
    """Refuse arguments of a training that are of the wrong kind, or out of range.

    Raises:
        WorkflowError: The message names the argument and its value.
    """
    check_sites_and_timeout("train", sites, timeout)
    is_count = isinstance(min_updates, int) and not isinstance(min_updates, bool)
    if min_updates is not None and not (is_count and min_updates >= 0):
        raise WorkflowError(
            f"run.train() was given min_updates={min_updates!r}; give it a whole number from 0, or "
            "None for clients.min_updates"
        )


def check_sites_and_timeout(method: str, sites: object, timeout: Any) -> None:
    """Refuse sites and a timeout that are of the wrong kind, or out of range.

    Raises:
        WorkflowError: The message names the method, the argument and its value.
    """
    if isinstance(sites, str) or not isinstance(sites, Sequence):
        raise WorkflowError(
            f"run.{method}() was given {sites!r} as its sites; give it a list of their names"
        )
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout < math.inf):
        raise WorkflowError(
            f"run.{method}() was given timeout={timeout!r}; give it seconds above 0, or None for "
            "clients.round_timeout"
        )


def check_idle(method: str, sites: Iterable[str], in_flight: Container[str]) -> None:
    """Refuse a training of sites that have one in flight.

    Raises:
        WorkflowError: The message names the method and one of them.
    """
    if busy := [site for site in sites if site in in_flight]:
        raise WorkflowError(
            f"run.{method}() was given {busy[0]}, whose training is in flight; choose from "
            "run.idle, or take its answer from run.next() first"
        )


def check_bodies(bodies: Mapping[str, object]) -> None:
    """Refuse bodies that a model cannot have beside it.

    Args:
        bodies: What each is to begin with, by name.

    Raises:
        WorkflowError: The message names the body and its value.
    """
    for name, value in bodies.items():
        if not is_body_name(name):
            raise WorkflowError(
                f"run.initial_model() was given a body named {name!r}; a name has small letters "
                f"and underscores, and is none of {', '.join(sorted(RESERVED_NAMES))}"
            )
        if value != "zeros":
            raise WorkflowError(
                f"run.initial_model({name}={value!r}): a body beside a model begins with zeros; "
                f'write {name}="zeros"'
            )


def fold_rules(
    aggregation: AggregationRule,
    bodies: Sequence[str],
    rule: object,
    rules: Mapping[str, object],
) -> dict[str, FoldRule]:
    """The rules of a fold by name of the body; that of the model has the empty name.

    Args:
        aggregation: The job's way to combine updates.
        bodies: Names of the bodies beside the model.
        rule: The rule of the model; None for the job's way.
        rules: Those of the bodies beside it, by name.

    Raises:
        WorkflowError: One is no rule, of no body, or missing; or the job's way is not the mean.
    """
    found: dict[str, FoldRule] = {}
    for body, given in {**({} if rule is None else {MAIN: rule}), **rules}.items():
        if not isinstance(given, FoldRule):
            name = f"{body}=" if body else ""
            raise WorkflowError(
                f"run.fold({name}...) was given a {type(given).__name__} as a rule; give it a "
                "FoldRule"
            )
        found[body] = given
    if unknown := sorted(found.keys() - {MAIN, *bodies}):
        raise WorkflowError(
            f"run.fold() was given a rule for the body {unknown[0]!r}, which the model does not "
            f'have; begin with run.initial_model({unknown[0]}="zeros")'
        )
    if missing := [body for body in bodies if body not in found]:
        raise WorkflowError(
            f"run.fold() has no rule for the body {missing[0]!r} beside the model; give it "
            f"{missing[0]}=FoldRule(...)"
        )
    if found and aggregation.holds_ranges:
        raise WorkflowError(
            "run.fold() was given rules, which are sums, and aggregation.method is "
            f"{aggregation.method}; set it to mean"
        )
    if MAIN in found and found[MAIN].weights is not None and aggregation.factors:
        raise WorkflowError(
            "run.fold() was given a rule with weights, and aggregation.weights has others; leave "
            "out one of the two"
        )
    return found
