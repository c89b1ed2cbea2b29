"""What the sections of a job have to agree on, each with those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flstream.job.aggregation_method import WEIGHTED, cohort_problems
from flstream.job.bodies import optimizer_bodies, senders
from flstream.job.clients_section import ClientsSection
from flstream.job.conditions import read_condition
from flstream.job.engine_section import EngineSection
from flstream.job.filters import FiltersSection
from flstream.job.key import workflow_name
from flstream.job.network_section import NetworkSection
from flstream.job.privacy import EPSILON, PrivacySection, privacy_problems
from flstream.job.problems import Problem, given, join
from flstream.job.sections import (
    AggregationSection,
    ServerOptimizerSection,
    StreamingSection,
)
from flstream.job.site_names import site_problems
from flstream.job.stage import Stage
from flstream.job.tracking import RUN, TrackingSection
from flstream.job.train_section import TrainSection

_ONE_BEST = "the best round is that of all workflows"
_OWN_STEP = "its own step counts every site alike, and is the server's"
_WHERE_MAPPED = "where streaming.mode is map, since no network carries descriptors"
_PULL = "set streaming.mode = pull"


@dataclass(frozen=True)
class SoundSections:
    """Keys and sections of a job file that come before another one, without those refused.

    The mistakes of a refused one are reported already, so that there is nothing to add.
    """

    stop_when: str | None = None
    patience: int | None = None
    clients: ClientsSection | None = None
    train: TrainSection | None = None
    stages: Sequence[Stage] = ()
    aggregation: AggregationSection | None = None
    streaming: StreamingSection | None = None

    @property
    def senders(self) -> list[str]:
        """What has tensors sent beside the model, in words that follow "in"."""
        return list(senders(self.stages, self.train))

    @property
    def averages_optimizers(self) -> bool:
        """Whether the state of optimizers is folded."""
        return self.train is not None and bool(optimizer_bodies(self.train))


Check = Callable[[Any, SoundSections], Iterator[Problem]]
"""Yields the problems of a section with those before it, by keys of the job or of the section."""


def judged(stages: Sequence[Stage]) -> Stage:
    """Return the stage whose arguments say which of the run's models is the best."""
    return next((stage for stage in stages if stage.has_rounds), stages[0])


def _a_process_for_each_command(train: TrainSection, job: SoundSections) -> Iterator[Problem]:
    clients = job.clients
    if train.command is not None and clients is not None and clients.workers < clients.count:
        allowed = "null where clients share processes"
        hint = f"set clients.parallel = {clients.count}, or take fewer clients"
        yield Problem("train.command", given(train.command), allowed, hint)


def _one_best_model(stages: Sequence[Stage], job: SoundSections) -> Iterator[Problem]:
    first = judged(stages)
    for index, stage in enumerate(stages[1:], 1):
        for name in ("key_metric", "key_metric_mode") if stage.has_rounds else ():
            here, there = getattr(stage.args, name), getattr(first.args, name)
            if here != there:
                allowed = f"{there}, as in workflow[{stages.index(first)}]"
                yield Problem(f"[{index}].args.{name}", given(here), allowed, _ONE_BEST)


def _arguments_of_these_clients(stages: Sequence[Stage], job: SoundSections) -> Iterator[Problem]:
    if job.clients is None:
        return
    for index, stage in enumerate(stages):
        section = f"[{index}].args" if len(stages) > 1 else "args"
        for each in stage.args.check_clients(job.clients):
            yield replace(each, key=join(section, each.key))


def _a_fold_for_optimizers(stages: Sequence[Stage], job: SoundSections) -> Iterator[Problem]:
    if job.train is None or not job.averages_optimizers:
        return
    for stage in stages:
        if not stage.args.takes_bodies:
            allowed = f"reset or local in {stage.name}, which does not fold in the server"
            yield Problem("train.optimizer_state", 'given "global"', allowed)
        elif twice := sorted(optimizer_bodies(job.train).keys() & set(stage.args.bodies)):
            allowed = f"other names in {stage.name}, which has a body {twice[0]} of its own"
            yield Problem("train.optimizer_moments", given(job.train.optimizer_moments), allowed)


def _weights_of_sites_there_are(
    aggregation: AggregationSection, job: SoundSections
) -> Iterator[Problem]:
    if job.clients is not None:
        sites = job.clients.site_names
        yield from site_problems("aggregation.weights", aggregation.weights, sites)


def _nothing_beside_a_step_of_the_workflow(
    section: AggregationSection | ServerOptimizerSection, job: SoundSections
) -> Iterator[Problem]:
    owners = [stage.name for stage in job.stages if stage.args.server_step is not None]
    plain = {"method": "mean", "weights": {}, "type": "none"}
    for owner in owners[:1]:
        for name, due in plain.items():
            value = getattr(section, name, due)
            if value != due:
                yield Problem(name, given(value), f"left out in {owner}", _OWN_STEP)


def _sums_where_bodies_are_folded(
    aggregation: AggregationSection, job: SoundSections
) -> Iterator[Problem]:
    for sender in job.senders[:1] if aggregation.method not in WEIGHTED else ():
        allowed = f"{' or '.join(WEIGHTED)} in {sender}, of which further tensors are summed"
        yield Problem("method", given(aggregation.method), allowed)


def _updates_enough_for_the_method(
    aggregation: AggregationSection, job: SoundSections
) -> Iterator[Problem]:
    if job.clients is not None:
        yield from cohort_problems(
            aggregation.method,
            aggregation.byzantine,
            aggregation.selected,
            job.clients.cohort_size,
        )


def _sound_together(privacy: PrivacySection, job: SoundSections) -> Iterator[Problem]:
    yield from privacy_problems(privacy, job.clients, job.aggregation, job.stages, job.stop_when)
    if privacy.is_on and job.averages_optimizers:
        allowed = "reset or local where privacy.type is central, which bounds the model alone"
        yield Problem("train.optimizer_state", 'given "global"', allowed)


def _something_to_stop_by(privacy: PrivacySection, job: SoundSections) -> Iterator[Problem]:
    early: dict[str, Any] = {"stop_when": job.stop_when, "patience": job.patience}
    if job.stop_when and privacy.is_on and read_condition(job.stop_when).metric == EPSILON:
        del early["stop_when"]  # what is spent is known of each round, evaluated or not
    never = [
        index
        for index, stage in enumerate(job.stages)
        if stage.has_rounds and stage.args.evaluate_every == 0 and stage.args.evaluate == "task"
    ]
    for index in never[:1]:
        section = workflow_name(index, len(job.stages))
        allowed = f"null where {section}.args.evaluate_every is 0, as no round is evaluated"
        for key, value in early.items():
            if value is not None:
                yield Problem(key, given(value), allowed)


def _nothing_passes_filters_by(filters: FiltersSection, job: SoundSections) -> Iterator[Problem]:
    if job.senders and (filters.up or filters.down):
        allowed = f"left out in {job.senders[0]}, which sends tensors beside the model"
        yield Problem("", "given", allowed)


def _codecs_of_all_that_is_sent(
    streaming: StreamingSection, job: SoundSections
) -> Iterator[Problem]:
    plans = {"up": streaming.codecs.of_updates, "down": streaming.codecs.of_models}
    for way, plan in plans.items() if job.senders else ():
        if plan.is_lossy:
            allowed = f"without a loss in {job.senders[0]}, which sends tensors beside the model"
            yield Problem(f"codecs.{way}", given(plan.specs[0].name), allowed)


def _links_of_sites_there_are(network: NetworkSection, job: SoundSections) -> Iterator[Problem]:
    clients = job.clients
    if clients is None or not network.is_on:
        return
    yield from site_problems("sites", network.sites, clients.site_names)
    if network.traces is not None:
        yield from network.traces.problems(clients.site_names)
    folding = [stage.name for stage in job.stages if stage.args.folds_at_sites]
    if folding and clients.workers < clients.count:
        allowed = f"{clients.count} where links are emulated in {folding[0]}, whose sites fold"
        yield Problem("clients.parallel", given(clients.parallel), allowed)


def _no_links_where_models_are_mapped(
    network: NetworkSection, job: SoundSections
) -> Iterator[Problem]:
    if job.streaming is not None and job.streaming.maps and network.is_on:
        yield Problem("", "given", f"left out {_WHERE_MAPPED}", _PULL)


def _this_machine_where_models_are_mapped(
    engine: EngineSection, job: SoundSections
) -> Iterator[Problem]:
    if job.streaming is not None and job.streaming.maps and not engine.is_local:
        yield Problem("type", given(engine.type), f"local {_WHERE_MAPPED}", _PULL)


def _one_process_where_inline(engine: EngineSection, job: SoundSections) -> Iterator[Problem]:
    if not engine.is_inline:
        return
    given_keys = {
        "train.command": job.train and job.train.command,
        "clients.gpus": job.clients and job.clients.gpus,
        "engine.gpus": engine.gpus,
    }
    for key, value in given_keys.items():
        if value is not None:
            allowed = f"other than inline where {key} is given, since inline has one process"
            yield Problem("type", given(engine.type), allowed, f"leave {key} out, or take local")


def _gpus_from_one_of_the_two(engine: EngineSection, job: SoundSections) -> Iterator[Problem]:
    if engine.gpus is not None and job.clients is not None and job.clients.gpus is not None:
        yield Problem("gpus", given(engine.gpus), "null where clients.gpus lists them")


def _no_site_named_as_the_run(tracking: TrackingSection, job: SoundSections) -> Iterator[Problem]:
    names = None if job.clients is None else job.clients.names
    if tracking.type is not None and RUN in (names or ()):
        allowed = f"other names than {RUN}, which stands for the whole run in a tracker"
        yield Problem("clients.names", given(names), allowed)


CHECKS: Mapping[str, Sequence[Check]] = {
    "train": (_a_process_for_each_command,),
    "stages": (_one_best_model, _arguments_of_these_clients, _a_fold_for_optimizers),
    "aggregation": (
        _weights_of_sites_there_are,
        _nothing_beside_a_step_of_the_workflow,
        _sums_where_bodies_are_folded,
        _updates_enough_for_the_method,
    ),
    "privacy": (_sound_together, _something_to_stop_by),
    "server_optimizer": (_nothing_beside_a_step_of_the_workflow,),
    "filters": (_nothing_passes_filters_by,),
    "streaming": (_codecs_of_all_that_is_sent,),
    "network": (_links_of_sites_there_are, _no_links_where_models_are_mapped),
    "engine": (
        _this_machine_where_models_are_mapped,
        _one_process_where_inline,
        _gpus_from_one_of_the_two,
    ),
    "tracking": (_no_site_named_as_the_run,),
}
"""Checks of each section, by the name of its field."""
