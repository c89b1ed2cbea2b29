"""Contradictions between keys of a job whose values are sound one by one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flstream.job.aggregation_method import (
    CHOOSING,
    WEIGHTED,
    find_own_rule,
    is_own,
    least_updates,
    most_byzantine,
)
from flstream.job.conditions import read_condition
from flstream.job.fields import FREE_ARGS
from flstream.job.keys import WORKFLOW
from flstream.job.privacy import EPSILON
from flstream.job.problems import MISSING, Problem, given
from flstream.job.site_names import site_problems
from flstream.job.tracking import RUN

if TYPE_CHECKING:
    from flstream.job.job import Job
    from flstream.job.stage import Stage


def contradictions(job: Job) -> Iterator[Problem]:
    """Yield a problem for each contradiction between keys of a job.

    Their `given` is empty for what the job file gives for the key.
    """
    for check in (_clients, _training, _workflows, _aggregation, _privacy, _travel, _places):
        yield from check(job)


def judged(stages: Sequence[Stage]) -> Stage:
    """Return the stage whose arguments say which of the run's models is the best."""
    return next((stage for stage in stages if stage.has_rounds), stages[0])


def workflow_name(index: int, count: int) -> str:
    """Return the name of a workflow's section, with which its keys begin.

    Args:
        index: Position of the workflow, from 0.
        count: Number of workflows of the job.
    """
    return f"{WORKFLOW}[{index}]" if count > 1 else WORKFLOW


def _must_be(key: str, allowed: str, hint: str = "") -> Problem:
    return Problem(key, "", allowed, hint)


def _clients(job: Job) -> Iterator[Problem]:
    clients, names = job.clients, job.clients.names
    if names is not None and clients.count != len(names):
        allowed = f"the number of clients.names, which is {len(names)}"
        yield _must_be("clients.count", allowed, "leave it out")
        return  # the site names would not be those of the job
    yield from site_problems("clients.args", clients.args, clients.site_names)
    yield from site_problems("network.sites", job.network.sites, clients.site_names)
    yield from site_problems("aggregation.weights", job.aggregation.weights, clients.site_names)
    if isinstance(clients.per_round, int) and clients.per_round > clients.count:
        yield _must_be("clients.per_round", f"at most clients.count, which is {clients.count}")
    elif clients.min_updates is not None and clients.min_updates > clients.cohort_size:
        allowed = f"at most the clients of a round, which are {clients.cohort_size}"
        yield _must_be("clients.min_updates", allowed)
    if job.tracking.type is not None and RUN in (names or ()):
        allowed = f"other names than {RUN}, which stands for the whole run in a tracker"
        yield _must_be("clients.names", allowed)


def _training(job: Job) -> Iterator[Problem]:
    train, clients = job.train, job.clients
    if train.script is not None and train.learner is not None:
        hint = "take the learner with train.script = null"
        only = "the only one of the two"
        yield Problem("train.learner", "given beside train.script", only, hint)
    elif train.learner is not None and isinstance(train.args, str):
        yield _must_be("train.args", f"{FREE_ARGS}, for a learner")
    if train.command is not None and train.learner is not None:
        yield _must_be("train.command", "null beside train.learner, as a command starts a script")
    elif train.command is not None and clients.workers < clients.count:
        hint = f"set clients.parallel = {clients.count}, or take fewer clients"
        yield _must_be("train.command", "null where clients share processes", hint)


def _workflows(job: Job) -> Iterator[Problem]:
    first = judged(job.stages)
    early = [key for key in ("stop_when", "patience") if getattr(job, key) is not None]
    if job.stop_when and job.privacy.is_on and read_condition(job.stop_when).metric == EPSILON:
        early.remove("stop_when")  # what is spent is known of each round, evaluated or not
    for index, stage in enumerate(job.stages):
        section = workflow_name(index, len(job.stages))
        for problem in stage.args.check_clients(job.clients):
            yield problem.below(f"{section}.args")
        for name in ("key_metric", "key_metric_mode") if stage.has_rounds else ():
            first_value = getattr(first.args, name)
            if getattr(stage.args, name) != first_value:
                hint = "the best round is that of all workflows"
                where = workflow_name(job.stages.index(first), 2)
                yield _must_be(f"{section}.args.{name}", f"{first_value}, as in {where}", hint)
        is_unjudged = stage.has_rounds and stage.args.evaluate_every == 0
        if early and is_unjudged and stage.args.evaluate == "task":
            allowed = f"null where {section}.args.evaluate_every is 0, as no round is evaluated"
            yield from (_must_be(key, allowed) for key in early)
            early = []


def _aggregation(job: Job) -> Iterator[Problem]:
    section = job.aggregation
    method, cohort = section.method, job.clients.cohort_size
    if is_own(method):
        make = find_own_rule(method).make
        try:
            inspect.signature(make).bind(**section.args)
        except TypeError as error:
            takes = f"what {make.__name__}{inspect.signature(make)} takes"
            yield _must_be("aggregation.args", takes, str(error))
    elif section.args:
        yield _must_be("aggregation.args", f"none, as aggregation.method is {method}")
    if section.weights and method not in WEIGHTED and not is_own(method):
        allowed = f"left out where aggregation.method is {method}, which counts all alike"
        yield _must_be("aggregation.weights", allowed)
    if section.clip_norm is None and method == "norm_bounded_mean":
        allowed = "a number above 0, or median, as aggregation.method is norm_bounded_mean"
        yield Problem("aggregation.clip_norm", MISSING, allowed)
    for name, owners in (("byzantine", CHOOSING), ("selected", ("multi_krum",))):
        if getattr(section, name) is not None and method not in owners:
            allowed = f"null, as aggregation.method is {method}; it is of {', '.join(owners)}"
            yield _must_be(f"aggregation.{name}", allowed)
    if method in CHOOSING:
        # A cohort may only become smaller in a round.
        needed = least_updates(method, section.byzantine or 0)
        most = most_byzantine(method, cohort)
        hint = f"a round has {cohort} updates at most: clients.count, clients.per_round"
        if most < 0:
            allowed = f"a method for fewer than {needed} updates, such as median"
            yield _must_be("aggregation.method", allowed, hint)
        elif section.byzantine is not None and section.byzantine > most:
            allowed = f"at most {most}, since {method} needs {needed} updates for that many"
            yield _must_be("aggregation.byzantine", allowed, hint)
        if section.selected is not None and section.selected > cohort:
            yield _must_be("aggregation.selected", f"at most {cohort}", hint)
    for owner in [stage.name for stage in job.stages if stage.args.server_step is not None][:1]:
        has = {
            "aggregation.method": method != "mean",
            "aggregation.weights": section.weights,
            "server_optimizer.type": job.server_optimizer.type != "none",
        }
        hint = "its own step counts every site alike, and is the server's"
        for key in has:
            if has[key]:
                yield _must_be(key, f"left out in {owner}", hint)


def _privacy(job: Job) -> Iterator[Problem]:
    privacy, clients, section = job.privacy, job.clients, job.aggregation
    if privacy.sampling == "without_replacement" and privacy.accountant == "pld":
        allowed = "poisson with privacy.accountant = pld, which knows no other"
        yield _must_be("privacy.sampling", allowed)
    if not privacy.is_on:
        return
    central = "where privacy.type is central"
    cohort, population = privacy.cohort(clients), privacy.drawn_from(clients)
    if cohort > population:
        least = f"at least the cohort, which is {cohort}"
        yield Problem("privacy.population", given(population), least)
    most = 2 * privacy.count_stddev(clients)
    if privacy.clipping.type == "adaptive" and privacy.noise_multiplier >= most:
        allowed = f"below twice privacy.clipping.count_stddev, which is {most:g} for {cohort} sites"
        hint = "raise that, too, for a count with more noise"
        yield Problem("privacy.noise_multiplier", given(privacy.noise_multiplier), allowed, hint)
    if section.method != "mean":
        allowed = f"mean {central}, which bounds what a site can do to a mean"
        yield _must_be("aggregation.method", allowed)
    if section.weights:
        allowed = f"left out {central}, which counts all sites alike"
        yield _must_be("aggregation.weights", allowed)
    if section.clip_norm is not None:
        yield _must_be("aggregation.clip_norm", f"null {central}, which has privacy.clipping.norm")
    for index, stage in enumerate(job.stages):
        if not stage.is_own and not stage.args.only_folds:
            key = f"{workflow_name(index, len(job.stages))}.type"
            yield _must_be(key, f"fedavg, or a workflow of your own that folds, {central}")
    condition = read_condition(job.stop_when) if job.stop_when else None
    if condition and condition.metric == EPSILON and condition.operator not in (">", ">="):
        yield _must_be("stop_when", f"{EPSILON} > a number, since {EPSILON} only grows")


def _travel(job: Job) -> Iterator[Problem]:
    filters, codecs = job.filters, job.streaming.codecs
    for sender in [stage.name for stage in job.stages if stage.args.bodies][:1]:
        beside = f"in {sender}, which sends tensors beside the model"
        if filters.up or filters.down:
            yield Problem("filters", "given", f"left out {beside}")
        for way, plan in (("up", codecs.of_updates), ("down", codecs.of_models)):
            if plan.is_lossy:
                yield _must_be(f"streaming.codecs.{way}", f"without a loss {beside}")
        if job.aggregation.method not in WEIGHTED:
            allowed = f"{' or '.join(WEIGHTED)} in {sender}, of which further tensors are summed"
            yield _must_be("aggregation.method", allowed)


def _places(job: Job) -> Iterator[Problem]:
    """Yield the contradictions about links, machines and their devices."""
    clients, network, engine = job.clients, job.network, job.engine
    folding = [stage.name for stage in job.stages if stage.args.folds_at_sites]
    if network.is_on and folding and clients.workers < clients.count:
        allowed = f"{clients.count} where links are emulated in {folding[0]}, whose sites fold"
        yield _must_be("clients.parallel", allowed)
    if network.traces is not None:
        path, traces = network.traces
        for problem in site_problems("network.traces", traces, clients.site_names):
            yield replace(problem, given=f"{path}: {problem.given}")
    mapped = "where streaming.mode is map, since no network carries descriptors"
    if job.streaming.maps and network.is_on:
        yield Problem("network", "given", f"left out {mapped}", "set streaming.mode = pull")
    if job.streaming.maps and not engine.is_local:
        yield _must_be("engine.type", f"local {mapped}", "set streaming.mode = pull")
    single = {
        "train.command": job.train.command,
        "clients.gpus": clients.gpus,
        "engine.gpus": engine.gpus,
    }
    for key, value in single.items() if engine.is_inline else ():
        if value is not None:
            allowed = f"other than inline where {key} is given, since inline has one process"
            yield _must_be("engine.type", allowed, f"leave {key} out, or take local")
    if engine.gpus is not None and clients.gpus is not None:
        yield _must_be("engine.gpus", "null where clients.gpus lists them")
    if engine.pdb and not engine.is_inline:
        yield _must_be("engine.pdb", "false, unless engine.type is inline", "add --engine inline")
    for name in ("bind", "key_file") if engine.type == "join" else ():
        if getattr(engine, name) is None:
            yield Problem(f"engine.{name}", MISSING, "given where engine.type is join")
    if job.tracking.args and ":" not in (job.tracking.type or ""):
        yield _must_be("tracking.args", f"none, as tracking.type is {job.tracking.type or 'null'}")
