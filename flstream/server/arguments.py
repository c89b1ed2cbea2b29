"""Checks of what a workflow passes to the methods of its run."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from flstream.aggregation.fold_rule import FoldRule, ServerStep, TensorFold
from flstream.errors import MisfitError, WorkflowError
from flstream.job import Job
from flstream.job.aggregation_section import METHODS
from flstream.job.bodies import MAIN, RESERVED_NAMES, is_body_name
from flstream.model.selection import ModelParts, Part, Selection
from flstream.server.program_view import Model, SiteModel, Update

if TYPE_CHECKING:
    from flstream.aggregation.rules import AggregationRule
    from flstream.server.training import UpdatesToFold

# Seconds that a job file may give at most, too.
_MOST_SECONDS = 10**10


def check_model(method: str, model: object) -> None:
    """Refuse what is no model."""
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
    """Refuse what are no values by name."""
    if values is not None and not isinstance(values, Mapping):
        raise WorkflowError(
            f"run.{method}() was given a {type(values).__name__} as {argument}; give it a dict of "
            "plain values by name"
        )


def check_scored(model: object, *, counts: bool) -> None:
    """Refuse what cannot be scored."""
    if isinstance(model, Model) or (isinstance(model, SiteModel) and not counts):
        return
    scored = "the model of a site with counts=True" if counts else f"a {type(model).__name__}"
    raise WorkflowError(
        f"run.score() was given {scored}; give it what run.initial_model(), run.fold() or "
        "run.adopt() returned, or, without counts, a model of run.collect()"
    )


def check_training(sites: object, min_updates: Any, timeout: Any) -> None:
    """Refuse arguments of a training that are of the wrong kind, or out of range."""
    check_sites_and_timeout("train", sites, timeout)
    is_count = isinstance(min_updates, int) and not isinstance(min_updates, bool)
    if min_updates is not None and not (is_count and min_updates >= 0):
        raise WorkflowError(
            f"run.train() was given min_updates={min_updates!r}; give it a whole number from 0, or "
            "None for clients.min_updates"
        )


WHOLE_MODEL = ModelParts()
"""The parts of a training whose sites are sent all of a model, and send all of it back."""


def parts_of(method: str, receive: object, send: object, late: object = None) -> ModelParts:
    """Return the tensors that the sites of a training are sent and send back."""
    if receive is None and send is None and late is None:
        return WHOLE_MODEL
    arguments = {"receive": receive, "send": send, "late": late}
    return ModelParts(*(_selection(method, name, value) for name, value in arguments.items()))


def _selection(method: str, argument: str, value: object) -> Selection | None:
    """Return the tensors that a workflow names, once they are patterns and parts.

    Raises:
        MisfitError: They are not; the message names the argument and the pattern.
    """
    if value is None:
        return None
    entries: list[Any] = [None]
    if isinstance(value, Sequence) and not isinstance(value, str):
        entries = list(value)
    for entry in entries:
        if not isinstance(entry, str | Part):
            raise MisfitError(
                f"run.{method}() was given {argument}={value!r}; give it a list of regular "
                "expressions that match whole names of tensors, or parts of run.partition()"
            )
        if isinstance(entry, str):
            try:
                re.compile(entry)
            except re.error as error:
                raise MisfitError(
                    f"run.{method}() was given {argument} with {entry!r}, which is no regular "
                    f"expression: {error}"
                ) from error
    if not entries and argument == "send":
        raise MisfitError(
            f"run.{method}() was given an empty list as send, so that nothing would be folded; "
            "name tensors, or leave it out"
        )
    return tuple(entries)


def check_sites_and_timeout(method: str, sites: object, timeout: Any) -> None:
    """Refuse sites and a timeout that are of the wrong kind, or out of range."""
    listed = sites if isinstance(sites, Sequence) and not isinstance(sites, str) else [None]
    if not all(isinstance(site, str) for site in listed):
        raise WorkflowError(
            f"run.{method}() was given {sites!r} as its sites; give it a list of their names"
        )
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout <= _MOST_SECONDS):
        raise WorkflowError(
            f"run.{method}() was given timeout={timeout!r}; give it seconds above 0, or None for "
            "clients.round_timeout"
        )


def check_wait(max_wait: Any, since: object) -> None:
    """Refuse a limit of a wait that is of the wrong kind, or out of range."""
    is_number = isinstance(max_wait, int | float) and not isinstance(max_wait, bool)
    is_limit = is_number and (0 <= max_wait <= _MOST_SECONDS or max_wait == math.inf)
    if max_wait is not None and not is_limit:
        raise WorkflowError(
            f"run.next() was given max_wait={max_wait!r}; give it seconds from 0, math.inf, or "
            "None to wait for an answer"
        )
    if since is not None and (max_wait is None or not isinstance(since, Update)):
        raise WorkflowError(
            f"run.next() was given a {type(since).__name__} as since; give it an update, from "
            "whose answer on the seconds of max_wait count, and max_wait"
        )


def check_idle(method: str, sites: Iterable[str], in_flight: Container[str]) -> None:
    """Refuse a training of sites that have one in flight."""
    if busy := [site for site in sites if site in in_flight]:
        raise WorkflowError(
            f"run.{method}() was given {busy[0]}, whose training is in flight; choose from "
            "run.idle, or take its answer from run.next() first"
        )


def check_bodies(job: Job, bodies: Mapping[str, object]) -> None:
    """Refuse bodies that a model cannot have beside it."""
    for name, value in bodies.items():
        if not is_body_name(name):
            raise WorkflowError(
                f"run.initial_model() was given a body named {name!r}; a name has small letters "
                f"and underscores, and is none of {', '.join(sorted(RESERVED_NAMES))}"
            )
        if value != "zeros" and not callable(value):
            raise WorkflowError(
                f"run.initial_model({name}={value!r}): a body beside a model begins with zeros; "
                f'write {name}="zeros", or give it a function that returns shapes by name'
            )
    codecs = job.streaming.codecs
    for key, is_set, what in (
        ("filters", bool(job.filters.up or job.filters.down), "filters"),
        ("streaming.codecs.up", codecs.of_updates.is_lossy, "a codec with a loss"),
        ("streaming.codecs.down", codecs.of_models.is_lossy, "a codec with a loss"),
    ):
        if bodies and is_set:
            raise MisfitError(
                f"run.initial_model() was given the body {next(iter(bodies))!r} beside the model, "
                f"and {key} has {what}, for the tensors of a model alone; leave out {key}"
            )


def check_fold(
    job: Job, to_fold: UpdatesToFold, step: ServerStep | None, at: Sequence[str] | None
) -> None:
    """Refuse a fold that the job's other keys rule out, or whose arguments rule out each other.

    Args:
        job: The job.
        to_fold: The updates, with the rules that they are under.
        step: The server's step of the workflow's own; None without one.
        at: Sites of which one is to fold; None for the server.
    """
    if step is not None:
        _check_step(job, step)
    if job.privacy.is_on:
        if to_fold.rules:
            what = "rules, and privacy.type is central, which knows what a site can do to a mean"
            raise MisfitError(f"run.fold() was given {what} alone; set privacy.type = none")
        if to_fold.twice is not None:
            raise MisfitError(
                f"run.fold() was given two updates of {to_fold.twice}, and privacy.type is "
                "central, which limits what a site adds by one; fold one of them, or set "
                "privacy.type = none"
            )
    if at is None:
        return
    if isinstance(at, str) or not isinstance(at, Sequence):
        raise WorkflowError(f"run.fold() was given at={at!r}; give it a list of sites' names")
    if not at:
        raise WorkflowError(
            "run.fold() was given no site to fold at; those that may fold are asked no more "
            "(clients.suspend_after), so name others, or leave out at"
        )
    if to_fold.twice is not None:
        raise WorkflowError(
            f"run.fold() was given at, and two updates of {to_fold.twice}, which the server's "
            "process alone folds together; leave one of the two out"
        )
    if step is not None or to_fold.rules:
        raise WorkflowError(
            f"run.fold() was given at, and {'rules' if step is None else 'a step'}, which is for "
            "the server's process alone; leave out one of the two"
        )
    if job.privacy.is_on:
        raise MisfitError(
            "run.fold() was given at, and privacy.type is central, whose noise the server adds; "
            "set privacy.type = none"
        )
    if job.streaming.codecs.of_models.of_changes:
        raise MisfitError(
            "run.fold() was given at, and streaming.codecs.down_of = changes, which the server "
            "alone encodes; set it to models"
        )
    if job.paces_links and job.clients.share_workers:
        raise MisfitError(
            "run.fold() was given at, and links are emulated (network), where each site that folds "
            f"needs a worker of its own; set clients.parallel = {job.clients.count}"
        )


def check_groups(
    job: Job,
    rule: AggregationRule,
    to_fold: UpdatesToFold,
    step: ServerStep | None,
    at: Sequence[str] | None,
    code: TensorFold | None,
) -> None:
    """Refuse a fold of groups of whole tensors that other keys or arguments rule out.

    Args:
        job: The job.
        rule: The job's rule.
        to_fold: The updates, with the rules that they are under.
        step: The server's step of the workflow's own; None without one.
        at: Sites of which one is to fold; None for the server.
        code: Code that the workflow gives the fold; None without any.
    """
    if code is None and not rule.combines_groups:
        return
    given = f"tensors={code.name}" if code else f"aggregation.method = {job.aggregation.type}"
    whole = f"run.fold() has {given}, which combines whole tensors"
    if at is not None:
        raise MisfitError(f"{whole} in the server's process alone; leave out at")
    if step is not None or MAIN in to_fold.rules:
        raise WorkflowError(f"{whole}, and a rule or a step, which is for sums; leave out one")
    for key, is_set in (
        ("aggregation.method", code is not None and job.aggregation.type != "mean"),
        ("aggregation.clip_norm", job.aggregation.clip_norm is not None),
        ("server_optimizer.type", job.server_optimizer.type != "none"),
        ("privacy.type", job.privacy.is_on),
    ):
        if is_set:
            raise MisfitError(
                f"{whole}, and {key} is for numbers one by one; leave out one of the two"
            )


def _check_step(job: Job, step: object) -> None:
    if not (isinstance(step, ServerStep) and is_dataclass(step)):
        raise WorkflowError(
            f"run.fold() was given a {type(step).__name__} as step; give it an object of a frozen "
            "dataclass that is derived from flstream.workflows.ServerStep"
        )
    for key, is_set in (
        ("aggregation.method", job.aggregation.type != "mean"),
        ("aggregation.weights", bool(job.aggregation.weights)),
        ("server_optimizer.type", job.server_optimizer.type != "none"),
        ("privacy.type", job.privacy.is_on),
    ):
        if is_set:
            raise MisfitError(
                f"run.fold() was given the step {step.name}, which is made from the plain mean of "
                f"the updates and takes the place of an optimizer; leave out {key}"
            )


def check_adopted(job: Job, updates: Sequence[Update]) -> list[Update]:
    """Return the update of one site that is to become the next model."""
    adopted = list(updates)
    if len(adopted) != 1:
        raise WorkflowError(
            f"run.adopt() takes the update of one site, and was given {len(adopted)}; "
            "use run.fold() for several, and skip the round where there is none"
        )
    does = "run.adopt() makes an update the next model as it is"
    check_not_private(job, does, "run.fold()")
    return adopted


def check_not_private(job: Job, does: str, instead: str) -> None:
    """Refuse what would tell of single sites where the job is private.

    Args:
        job: The job.
        does: The call and what it does, as a clause.
        instead: Call that does it in a private job; empty for none.
    """
    if job.privacy.is_on:
        advice = f"use {instead}, or set" if instead else "set"
        raise MisfitError(f"{does}, and privacy.type is central; {advice} privacy.type = none")


def fold_rules(
    job: Job,
    bodies: Sequence[str],
    own: Sequence[str],
    rule: object,
    rules: Mapping[str, object],
) -> dict[str, FoldRule]:
    """The rules of a fold by name of the body; that of the model has the empty name.

    Args:
        job: The job.
        bodies: Names of the bodies beside the model.
        own: Those that are the server's own, and need no rule.
        rule: The rule of the model; None for the job's way.
        rules: Those of the bodies beside it, by name.

    Raises:
        WorkflowError: One is no rule, of no body, or missing.
        MisfitError: The job's way to combine updates is not the mean, or has weights of its own.
    """
    by_body: dict[str, FoldRule] = {}
    for body, body_rule in {**({} if rule is None else {MAIN: rule}), **rules}.items():
        if not isinstance(body_rule, FoldRule):
            name = f"{body}=" if body else ""
            raise WorkflowError(
                f"run.fold({name}...) was given a {type(body_rule).__name__} as a rule; give it a "
                "FoldRule"
            )
        by_body[body] = body_rule
    if unknown := sorted(by_body.keys() - {MAIN, *bodies}):
        raise WorkflowError(
            f"run.fold() was given a rule for the body {unknown[0]!r}, which the model does not "
            f'have; begin with run.initial_model({unknown[0]}="zeros")'
        )
    if missing := [body for body in bodies if body not in {*by_body, *own}]:
        raise WorkflowError(
            f"run.fold() has no rule for the body {missing[0]!r} beside the model; give it "
            f"{missing[0]}=FoldRule(...)"
        )
    aggregation = job.aggregation
    method = METHODS.get(aggregation.type)
    if by_body and (method is None or not method.is_weighted):
        raise MisfitError(
            "run.fold() was given rules, which are sums, and aggregation.method is "
            f"{aggregation.type}; set it to mean"
        )
    if MAIN in by_body and by_body[MAIN].weights is not None and aggregation.weights:
        raise MisfitError(
            "run.fold() was given a rule with weights, and aggregation.weights has others; leave "
            "out one of the two"
        )
    return by_body
