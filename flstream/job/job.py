"""A job: the sections of its file, the keys at the top, and the rules between sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from flstream.job.aggregation_method import WEIGHTED, cohort_problems
from flstream.job.bodies import optimizer_bodies, senders
from flstream.job.conditions import StopCondition, read_condition
from flstream.job.engine_section import EngineSection
from flstream.job.filters import FiltersSection
from flstream.job.key import join, workflow_name
from flstream.job.network_section import NetworkSection
from flstream.job.privacy import EPSILON, PrivacySection, privacy_problems
from flstream.job.problems import Problem, did_you_mean, given
from flstream.job.rules import Text, Whole, refuse
from flstream.job.scoring import ScoreSource, score_source
from flstream.job.section import Section
from flstream.job.sections import (
    AggregationSection,
    CheckpointsSection,
    ClientsSection,
    ModelSection,
    ServerOptimizerSection,
    StreamingSection,
)
from flstream.job.stage import Stage
from flstream.job.submitting import submits_models
from flstream.job.tracking import RUN, TrackingSection
from flstream.job.train_section import TrainSection

_ONE_BEST = "the best round is that of all workflows"
_WHERE_MAPPED = "where streaming.mode is map, since no network carries descriptors"
_PULL = "set streaming.mode = pull"
_OWN_STEP = "its own step counts every site alike, and is the server's"


class Job(Section):
    """A resolved job: every default is filled in, and every path is absolute."""

    name: Annotated[
        str,
        Text(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
            "at most 100 letters, digits, . _ and -, a letter or digit first",
        ),
    ]
    """The job's name, which is part of the name of its run directory."""

    seed: Annotated[int, Whole(0, 2**64 - 1)] = 0
    """What all randomness starts from: the same job and seed give the same bits."""

    rounds: Annotated[int, Whole(1)]
    """How many rounds the job runs."""

    stop_when: Annotated[str | None, StopCondition()] = None
    """The job ends early once an evaluation's metric is there (`accuracy >= 0.97`); null is never.

    The operators are >= <= > <. A metric that is NaN, infinite or missing does not end it. In a
    private job, `epsilon > 3` ends it before a round that would spend more.
    """

    patience: Annotated[int | None, Whole(1)] = None
    """The job ends early after so many evaluations without a new best key metric; null is never.

    One in which the metric is NaN, infinite or missing does not count.
    """

    clients: ClientsSection
    model: ModelSection
    train: TrainSection
    stages: tuple[Stage, ...] = Field(alias="workflow", default_factory=lambda: (Stage(),))
    """The workflows, one after another; most jobs have one."""

    aggregation: AggregationSection = AggregationSection()
    privacy: PrivacySection = Field(default=PrivacySection(), validate_default=True)
    server_optimizer: ServerOptimizerSection = ServerOptimizerSection()
    filters: FiltersSection = FiltersSection()
    streaming: StreamingSection = StreamingSection()
    network: NetworkSection = NetworkSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    engine: EngineSection = EngineSection()
    tracking: TrackingSection = TrackingSection()

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @field_validator("train")
    @classmethod
    def _a_process_for_each_command(cls, value: TrainSection, info: ValidationInfo) -> TrainSection:
        clients = info.data.get("clients")
        if value.command is not None and clients is not None and clients.workers < clients.count:
            allowed = "null where clients share processes"
            hint = f"set clients.parallel = {clients.count}, or take fewer clients"
            raise refuse(Problem("train.command", given(value.command), allowed, hint))
        return value

    @field_validator("stages", mode="before")
    @classmethod
    def _one_or_a_list(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return [value]
        if isinstance(value, list | tuple) and value:
            return value
        allowed = "a section { type, args }, or a list of such sections"
        raise refuse(Problem("", given(value), allowed))

    @field_validator("stages")
    @classmethod
    def _agree_with_each_other(cls, value: tuple[Stage, ...]) -> tuple[Stage, ...]:
        first, problems = _judged(value).args, []
        for index, stage in enumerate(value[1:], 1):
            if not stage.has_rounds:
                continue
            for name in ("key_metric", "key_metric_mode"):
                here, there = getattr(stage.args, name), getattr(first, name)
                if here != there:
                    place = f"workflow[{value.index(_judged(value))}]"
                    key, allowed = f"[{index}].args.{name}", f"{there}, as in {place}"
                    problems.append(Problem(key, given(here), allowed, _ONE_BEST))
        if problems:
            raise refuse(*problems)
        return value

    @field_validator("stages")
    @classmethod
    def _agree_with_the_clients(
        cls, value: tuple[Stage, ...], info: ValidationInfo
    ) -> tuple[Stage, ...]:
        clients = info.data.get("clients")
        if clients is None:
            return value  # the clients' mistakes are reported already
        problems = [
            replace(problem, key=join(_inside(index, value), problem.key))
            for index, stage in enumerate(value)
            for problem in stage.args.check_clients(clients)
        ]
        if problems:
            raise refuse(*problems)
        return value

    @field_validator("stages")
    @classmethod
    def _fold_where_optimizers_are_averaged(
        cls, value: tuple[Stage, ...], info: ValidationInfo
    ) -> tuple[Stage, ...]:
        train = info.data.get("train")
        if train is None:
            return value  # its mistakes are reported already
        averaged = optimizer_bodies(train)
        for stage in value if averaged else ():
            if not stage.args.takes_bodies:
                allowed = f"reset or local in {stage.name}, which does not fold in the server"
                raise refuse(Problem("train.optimizer_state", 'given "global"', allowed))
            if twice := sorted(averaged.keys() & set(stage.args.bodies)):
                allowed = f"other names in {stage.name}, which has a body {twice[0]} of its own"
                moments = given(train.optimizer_moments)
                raise refuse(Problem("train.optimizer_moments", moments, allowed))
        return value

    @field_validator("privacy")
    @classmethod
    def _sound_together(cls, value: PrivacySection, info: ValidationInfo) -> PrivacySection:
        clients, aggregation = info.data.get("clients"), info.data.get("aggregation")
        stages, condition = info.data.get("stages", ()), info.data.get("stop_when")
        problems = list(privacy_problems(value, clients, aggregation, stages, condition))
        train = info.data.get("train")
        if value.is_on and train is not None and optimizer_bodies(train):
            allowed = "reset or local where privacy.type is central, which bounds the model alone"
            problems.append(Problem("train.optimizer_state", 'given "global"', allowed))
        if problems:
            raise refuse(*problems)
        return value

    @field_validator("privacy")
    @classmethod
    def _something_to_stop_by(cls, value: PrivacySection, info: ValidationInfo) -> PrivacySection:
        early = [key for key in ("stop_when", "patience") if info.data.get(key) is not None]
        if "stop_when" in early and value.is_on:
            # What is spent is known of each round, evaluated or not.
            by = read_condition(info.data["stop_when"]).metric
            early = [key for key in early if key != "stop_when" or by != EPSILON]
        stages = info.data.get("stages", ())
        never = [
            index
            for index, stage in enumerate(stages)
            if stage.has_rounds and stage.args.evaluate_every == 0
        ]
        train = info.data.get("train")
        if train is not None:
            never = [each for each in never if score_source(stages[each].args, train) == "task"]
        if early and never:
            section = workflow_name(never[0], len(stages))
            allowed = f"null where {section}.args.evaluate_every is 0, as no round is evaluated"
            raise refuse(*(Problem(key, given(info.data[key]), allowed) for key in early))
        return value

    @field_validator("aggregation")
    @classmethod
    def _weights_of_sites_that_there_are(
        cls, value: AggregationSection, info: ValidationInfo
    ) -> AggregationSection:
        clients = info.data.get("clients")
        names = [] if clients is None else clients.site_names
        unknown = sorted(set(value.weights).difference(names)) if names else []
        if unknown:
            allowed = f"sites of the job, which are {names[0]} to {names[-1]}"
            hint = did_you_mean(unknown[0], names)
            found = f"given {', '.join(unknown)}"
            raise refuse(Problem("aggregation.weights", found, allowed, hint))
        return value

    @field_validator("aggregation", "server_optimizer")
    @classmethod
    def _nothing_beside_a_step_of_the_workflow(
        cls, value: Section, info: ValidationInfo
    ) -> Section:
        stages: tuple[Stage, ...] = info.data.get("stages", ())
        owners = [stage.name for stage in stages if stage.args.server_step is not None]
        plain = {"method": "mean", "weights": {}, "type": "none"}
        problems = [
            Problem(
                f"{info.field_name}.{name}", given(getattr(value, name)), f"left out in {owner}"
            )
            for owner in owners[:1]
            for name, due in plain.items()
            if getattr(value, name, due) != due
        ]
        if problems:
            raise refuse(*(replace(each, hint=_OWN_STEP) for each in problems))
        return value

    @field_validator("aggregation")
    @classmethod
    def _sums_where_bodies_are_folded(
        cls, value: AggregationSection, info: ValidationInfo
    ) -> AggregationSection:
        stages: tuple[Stage, ...] = info.data.get("stages", ())
        beside = list(senders(stages, info.data.get("train")))
        if beside and value.method not in WEIGHTED:
            allowed = f"{' or '.join(WEIGHTED)} in {beside[0]}, of which further tensors are summed"
            raise refuse(Problem("method", given(value.method), allowed))
        return value

    @field_validator("aggregation")
    @classmethod
    def _updates_enough_for_the_method(
        cls, value: AggregationSection, info: ValidationInfo
    ) -> AggregationSection:
        clients = info.data.get("clients")
        if clients is not None:
            problems = list(
                cohort_problems(value.method, value.byzantine, value.selected, clients.cohort_size)
            )
            if problems:
                raise refuse(*problems)
        return value

    @field_validator("filters")
    @classmethod
    def _nothing_passes_them_by(cls, value: FiltersSection, info: ValidationInfo) -> FiltersSection:
        stages: tuple[Stage, ...] = info.data.get("stages", ())
        beside = list(senders(stages, info.data.get("train")))
        if beside and (value.up or value.down):
            allowed = f"left out in {beside[0]}, which sends tensors beside the model"
            raise refuse(Problem("", "given", allowed))
        collects = [stage.name for stage in stages if stage.args.collects_models]
        if value.up and collects and "train" in info.data and submits_models(info.data["train"]):
            allowed = (
                f"left out in {collects[0]} of code that names is_submit_model, since what it "
                "submits is no update"
            )
            raise refuse(Problem("up", "given", allowed))
        return value

    @field_validator("streaming")
    @classmethod
    def _codecs_of_all_that_is_sent(
        cls, value: StreamingSection, info: ValidationInfo
    ) -> StreamingSection:
        stages: tuple[Stage, ...] = info.data.get("stages", ())
        beside = list(senders(stages, info.data.get("train")))
        codecs = value.codecs
        for key, plan in (("codecs.up", codecs.of_updates), ("codecs.down", codecs.of_models)):
            if beside and plan.is_lossy:
                allowed = f"without a loss in {beside[0]}, which sends tensors beside the model"
                raise refuse(Problem(key, given(plan.specs[0].name), allowed))
        return value

    @field_validator("network")
    @classmethod
    def _links_of_sites_that_there_are(
        cls, value: NetworkSection, info: ValidationInfo
    ) -> NetworkSection:
        clients = info.data.get("clients")
        if clients is None or not value.is_on:
            return value  # the clients' mistakes are reported already
        problems = list(value.unknown_sites(clients.site_names))
        stages: tuple[Stage, ...] = info.data.get("stages", ())
        folding = [stage.name for stage in stages if stage.args.folds_at_sites]
        if folding and clients.workers < clients.count:
            allowed = f"{clients.count} where links are emulated in {folding[0]}, whose sites fold"
            problems.append(Problem("clients.parallel", given(clients.parallel), allowed))
        if problems:
            raise refuse(*problems)
        return value

    @field_validator("network", "engine")
    @classmethod
    def _descriptors_where_models_are_mapped(
        cls, value: NetworkSection | EngineSection, info: ValidationInfo
    ) -> NetworkSection | EngineSection:
        streaming = info.data.get("streaming")
        if streaming is None or not streaming.maps:
            return value
        if isinstance(value, NetworkSection) and value.is_on:
            raise refuse(Problem("", "given", f"left out {_WHERE_MAPPED}", _PULL))
        if isinstance(value, EngineSection) and not value.is_local:
            raise refuse(Problem("type", given(value.type), f"local {_WHERE_MAPPED}", _PULL))
        return value

    @field_validator("engine")
    @classmethod
    def _gpus_from_one_of_the_two(cls, value: EngineSection, info: ValidationInfo) -> EngineSection:
        clients = info.data.get("clients")
        if value.gpus is not None and clients is not None and clients.gpus is not None:
            allowed = "null where clients.gpus lists them"
            raise refuse(Problem("gpus", given(value.gpus), allowed))
        return value

    @field_validator("tracking")
    @classmethod
    def _no_site_of_its_name(cls, value: TrackingSection, info: ValidationInfo) -> TrackingSection:
        clients = info.data.get("clients")
        if value.type is not None and clients is not None and RUN in (clients.names or ()):
            allowed = f"other names than {RUN}, which stands for the whole run in a tracker"
            raise refuse(Problem("clients.names", given(clients.names), allowed))
        return value

    def model_post_init(self, context: Any) -> None:
        """Store the folder that relative paths start from."""
        if context and context.get("folder"):
            self._folder = context["folder"]

    @property
    def folder(self) -> Path:
        """Absolute path of the job file's folder; not a key, so equal jobs may differ in it."""
        return self._folder

    @property
    def score_sources(self) -> list[ScoreSource]:
        """Where the scores of each workflow's models come from, in order; reads the script."""
        return [score_source(stage.args, self.train) for stage in self.stages]

    @property
    def planned_rounds(self) -> int:
        """Number of rounds of all stages together; 0 where none of them trains."""
        return self.rounds * sum(stage.has_rounds for stage in self.stages)

    @property
    def key_metric(self) -> str:
        """Name of the metric that decides which round is the best, over all stages."""
        return _judged(self.stages).args.key_metric

    @property
    def key_metric_mode(self) -> Literal["max", "min"]:
        """Whether the largest or the smallest value of the key metric is the best."""
        return _judged(self.stages).args.key_metric_mode

    @property
    def keep_models(self) -> bool:
        """Whether sites keep a model as they received it, since it is needed after training."""
        return self.filters.keep_models or self.streaming.codecs.keep_models

    @property
    def collects_models(self) -> bool:
        """Whether a workflow collects the models of the sites."""
        return any(stage.collects_models for stage in self.stages)

    @property
    def submits_models(self) -> bool:
        """Whether the training code answers tasks to send a model of the site's own; reads it."""
        return submits_models(self.train)

    def __eq__(self, other: object) -> bool:
        """Compare the keys of two jobs, but not their folders."""
        return isinstance(other, Job) and self.__dict__ == other.__dict__


def _judged(stages: Sequence[Stage]) -> Stage:
    """Return the stage whose arguments say which of the run's models is the best."""
    return next((stage for stage in stages if stage.has_rounds), stages[0])


def _inside(index: int, stages: Sequence[Stage]) -> str:
    """Return the key of a stage's arguments, relative to the workflows' section."""
    return f"[{index}].args" if len(stages) > 1 else "args"
