"""A job: the sections of its file, and the keys at the top."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    field_serializer,
    field_validator,
    model_validator,
)

from flstream.job.aggregation_section import AggregationSection, ServerOptimizerSection
from flstream.job.checks import contradictions, stage_with_key_metric, workflow_name
from flstream.job.clients_section import ClientsSection
from flstream.job.code import file_of
from flstream.job.codecs import CodecsSection
from flstream.job.conditions import StopCondition
from flstream.job.device import SiteDevice
from flstream.job.devices_section import DevicesSection
from flstream.job.fields import Allowed, Count, MemoryLimit, Section, Whole
from flstream.job.filters import FiltersSection
from flstream.job.keys import value_at
from flstream.job.model_section import BaseSection, ModelSection
from flstream.job.network_section import NetworkLink, NetworkSection
from flstream.job.problems import RefusedValueError, given_clause, must_be
from flstream.job.sections import (
    CheckpointsSection,
    EngineSection,
    PrivacySection,
    StreamingSection,
    TrackingSection,
)
from flstream.job.stage import Stage, built_ins, find_workflow
from flstream.job.time_section import StragglersSection, TimeSection
from flstream.job.train_section import CODE_KEYS, EvaluateSection, TrainSection
from flstream.telemetry.events import EVALUATOR

# Far more than a run can do, and no more than the records of one can hold.
_MOST_ROUNDS = 10**9


class OwnCode(NamedTuple):
    """Function or class of the user's own.

    Attributes:
        key: Key of the job file that names it.
        place: Its place: `package.module:name` or `/abs/path.py:name`.
        args: Arguments of the class or the factory that the job gives.
    """

    key: str
    place: str
    args: Mapping[str, Any]

    @property
    def file(self) -> Path | None:
        """Path of its file; None in an installed module."""
        return file_of(self.place)


class Job(Section):
    """A resolved job: every default is filled in, and every path is absolute."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"),
        Allowed("at most 100 letters, digits, . _ and -, a letter or digit first"),
    ]
    """The job's name, which is part of the name of its run directory."""

    seed: Annotated[Whole, Field(ge=0, le=2**64 - 1)] = 0
    """What all randomness starts from: the same job and seed give the same bits."""

    rounds: Annotated[Whole, Field(ge=1, le=_MOST_ROUNDS)]
    """How many rounds the job runs; 1 for workflows without rounds."""

    stop_when: StopCondition | None = None
    """The job ends early once an evaluation's metric is there (`accuracy >= 0.97`); null is never.

    The operators are >= <= > <. A metric that is NaN, infinite or missing does not end it. In a
    private job, `epsilon > 3` ends it before a round that would spend more.
    """

    patience: Count | None = None
    """The job ends early after so many evaluations without a new best key metric; null is never.

    One in which the metric is NaN, infinite or missing does not count.
    """

    memory_limit: MemoryLimit | None = None
    """The memory of all processes of the run together, the launcher too; null is without a limit.

    They are in a control group of the kernel. Cached pages of files count, but are dropped or
    written to the disk rather than exceed it. The run's models do not depend on it.
    """

    clients: ClientsSection
    model: ModelSection
    train: TrainSection
    evaluate: EvaluateSection = EvaluateSection()
    stages: tuple[Stage, ...] = Field(
        alias="workflow",
        default_factory=lambda: (Stage(),),
        json_schema_extra={"type": ["object", "array"]},
    )
    """The workflows, one after another; most jobs have one."""

    aggregation: AggregationSection = AggregationSection()
    privacy: PrivacySection = PrivacySection()
    server_optimizer: ServerOptimizerSection = ServerOptimizerSection()
    filters: FiltersSection = FiltersSection()
    streaming: StreamingSection = StreamingSection()
    network: NetworkSection = NetworkSection()
    time: TimeSection = TimeSection()
    stragglers: StragglersSection = StragglersSection()
    devices: DevicesSection = DevicesSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    engine: EngineSection = EngineSection()
    tracking: TrackingSection = TrackingSection()

    _folder: Path = PrivateAttr(default_factory=Path.cwd)
    # Known here, so that processes of sites need not import a workflow of the user's own.
    _training_stages: int = PrivateAttr(0)

    @model_validator(mode="before")
    @classmethod
    def _with_sections(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        # So that the keys that an omitted section has to have are named one by one.
        required: dict[str, Any] = {"clients": {}, "model": {}, "train": {}}
        if "rounds" not in values and _has_no_rounds(values.get("workflow")):
            required["rounds"] = 1
        return {**required, **values}

    @field_validator("stages", mode="before")
    @classmethod
    def _one_or_a_list(cls, value: Any) -> Any:
        if isinstance(value, Mapping | str):
            return [value]
        if isinstance(value, list | tuple) and value:
            return value
        raise must_be("a section { type, args }, or a list of such sections")

    @field_serializer("stages", when_used="json")
    def _one_section(self, stages: tuple[Stage, ...]) -> Any:
        sections = [stage.model_dump(mode="json") for stage in stages]
        return sections if len(sections) > 1 else sections[0]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if problems := [*contradictions(self)]:
            values = self.written()
            raise RefusedValueError(
                *(
                    replace(p, state=p.state or given_clause(value_at(values, p.key)))
                    for p in problems
                )
            )
        self._training_stages = sum(stage.has_rounds for stage in self.stages)
        return self

    def model_post_init(self, context: Any) -> None:
        """Store the folder that relative paths start from."""
        if context and context.get("folder"):
            self._folder = context["folder"]

    def written(self) -> dict[str, Any]:
        """Return the values of all keys, as a job file gives them."""
        return self.model_dump(mode="json", by_alias=True)

    def moved(self, copy: Path) -> Self:
        """Return the job for a machine that has a copy of its folder.

        A path that is not in the copy stays, as that machine may see it all the same.

        Args:
            copy: Absolute path of the copy.
        """
        job: Self = _moved(self, str(self._folder), str(copy))
        job._folder = copy
        return job

    @property
    def is_scored_centrally(self) -> bool:
        """Whether the evaluator, and no site, decides the score of a model."""
        return self.evaluate.at == "server"

    @property
    def is_direct(self) -> bool:
        """Whether processes of one machine may read each other's files and memory."""
        return self.streaming.direct == "auto" and self.streaming.mode != "native"

    @property
    def is_on_one_disk(self) -> bool:
        """Whether workers may write files of the server, as no transfer is to be seen or slowed."""
        is_seen = self.paces_links or self.streaming.codecs.of_updates.is_framed
        return self.engine.is_local and self.is_direct and not is_seen

    @property
    def client_code(self) -> dict[str, TrainSection | EvaluateSection]:
        """The sections whose code of the client API the job runs, by name."""
        central = {"evaluate": self.evaluate} if self.is_scored_centrally else {}
        return {"train": self.train, **central}

    def of_evaluator(self) -> Self:
        """Return the job of the evaluator, whose one client it is.

        The model comes to it as it is, without filters, codecs and an emulated link.
        """
        clients: dict[str, Any] = {"names": [EVALUATOR], "count": 1, "args": {}, "gpus": None}
        code: dict[str, Any] = {name: getattr(self.evaluate, name) for name in CODE_KEYS}
        code |= {"command": None, "optimizer_state": None}
        changed = {
            "clients": self.clients.model_copy(update=clients),
            "train": self.train.model_copy(update=code),
            "filters": FiltersSection(),
            "network": NetworkSection(),
            "streaming": self.streaming.model_copy(update={"codecs": CodecsSection()}),
        }
        return self.model_copy(update=changed)

    @property
    def folder(self) -> Path:
        """Absolute path of the job file's folder; no key, so equal jobs may differ in it."""
        return self._folder

    @property
    def planned_rounds(self) -> int:
        """Number of rounds of all stages together; 0 where none of them trains."""
        return self.rounds * self._training_stages

    @property
    def key_metric(self) -> str:
        """Name of the metric that decides which round is the best, over all stages."""
        return stage_with_key_metric(self.stages).args.key_metric

    @property
    def key_metric_mode(self) -> Literal["max", "min"]:
        """Whether the largest or the smallest value of the key metric is the best."""
        return stage_with_key_metric(self.stages).args.key_metric_mode

    @property
    def sample_size(self) -> int:
        """Number of sites that a round samples: those that it needs, and the extra ones."""
        return self.clients.cohort_size + (self.stragglers.extra or 0)

    @property
    def chooses_answers(self) -> bool:
        """Whether it is known after a training alone whose answers have come in time."""
        may_end_early = self.stragglers.is_on or self.clients.wait_after_min is not None
        return self.time.is_virtual and may_end_early

    @property
    def straggler_reason(self) -> str:
        """Reason why a round went on without a site, which names the key that decides it."""
        if self.stragglers.is_on:
            return f"the round went on without it (stragglers.policy = {self.stragglers.policy})"
        waited = f"{self.clients.wait_after_min or 0:g} s"
        return f"it was not ready {waited} after enough others (clients.wait_after_min)"

    @property
    def devices_come_and_go(self) -> bool:
        """Whether there are sites that may not be asked at all times."""
        return any(device.available is not None for device in self.devices.named.values())

    @property
    def devices_have_memory(self) -> bool:
        """Whether there are sites that may lack the memory for a model."""
        devices = self.devices
        rows = () if devices.file is None else (*devices.file.rows, *devices.file.sites.values())
        return any(device.memory is not None for device in (*devices.named.values(), *rows))

    def device(self, site: str) -> SiteDevice:
        """Return the device of a site, with the link that ``network`` has where it has none.

        It is made anew each time: where a site's availability is of random periods, the same
        device finds the next one fastest.
        """
        return self.devices.device(site, self.seed, self.network.link(site, self.seed))

    @property
    def paces_links(self) -> bool:
        """Whether links are emulated in real time; the virtual clock adds them up instead."""
        return self.network.is_on and not self.time.is_virtual

    def links(self, sites: Iterable[str]) -> dict[str, NetworkLink]:
        """Return the emulated links of sites by name; none where they are not paced."""
        return self.network.links(sites, self.seed) if self.paces_links else {}

    def own_code(self) -> Iterator[OwnCode]:
        """Yield the functions and classes of the user's own that keys of the job name."""
        rule, codecs, base = self.aggregation, self.streaming.codecs, self.model.base
        sampler = self.clients.sampler
        named: list[tuple[str, str | None, Mapping[str, Any]]] = [
            ("model.factory", self.model.factory, self.model.args),
            ("model.base.factory", base.factory, base.args),
            ("train.learner", self.train.learner, {}),
            ("evaluate.learner", self.evaluate.learner, {}),
            ("aggregation.method", rule.type, dict(rule.args)),
            ("tracking.type", self.tracking.type, dict(self.tracking.args)),
            ("clients.sampler.type", sampler.type, dict(sampler.args)),
        ]
        for index, stage in enumerate(self.stages):
            named.append((f"{workflow_name(index, len(self.stages))}.type", stage.type, {}))
        for key, specs in (
            ("filters.up", self.filters.up),
            ("filters.down", self.filters.down),
            ("streaming.codecs.up", codecs.up),
            ("streaming.codecs.down", codecs.down),
        ):
            for index, spec in enumerate(specs):
                named.append((f"{key}[{index}].type", spec.type, dict(spec.args)))
        for key, place, args in named:
            if place is not None and ":" in place:
                yield OwnCode(key, place, args)

    @property
    def base(self) -> BaseSection | None:
        """The base that all sites share; None without one."""
        return self.model.base if self.model.base.is_on else None

    def with_base(self, digest: str) -> Self:
        """Return the job with its base built; the digest names the file, and is no key."""
        model = self.model.model_copy(update={"base": self.model.base.built(digest)})
        return self.model_copy(update={"model": model})

    @property
    def keep_models(self) -> bool:
        """Whether sites keep received models for use after training."""
        return self.filters.keep_models or self.streaming.codecs.keep_models

    def __eq__(self, other: object) -> bool:
        """Compare the keys of two jobs, but not their folders."""
        return isinstance(other, Job) and self.__dict__ == other.__dict__


def _has_no_rounds(written: Any) -> bool:
    """Return whether all workflows are built-in ones without rounds."""
    sections = written if isinstance(written, list) else [written]
    kinds = [stage.get("type") if isinstance(stage, Mapping) else stage for stage in sections]
    return all(kind in [*built_ins()] and not find_workflow(kind).args.has_rounds for kind in kinds)


def _moved(value: Any, folder: str, copy: str) -> Any:
    """Return a value whose paths in a folder are paths in a copy of the folder."""
    match value:
        case str():
            # A path within a text, such as --data=/job/data, as far as one can be told.
            path = rf"(?<![\w.~/-]){re.escape(folder)}(?:/[^\s:;,'\"=]*)?(?![\w.-])"
            whole = _moved_path(value, folder, copy)
            return re.sub(path, lambda match: _moved_path(match[0], folder, copy), whole)
        case Path():
            return Path(_moved_path(str(value), folder, copy))
        case BaseModel():
            fields = {name: _moved(item, folder, copy) for name, item in value}
            return value.model_copy(update=fields)
        case dict():
            return {key: _moved(item, folder, copy) for key, item in value.items()}
        case list() | tuple() if not hasattr(value, "_fields"):
            return type(value)(_moved(item, folder, copy) for item in value)
    return value


def _moved_path(path: str, folder: str, copy: str) -> str:
    is_inside = path == folder or path.startswith(f"{folder}/")
    other = copy + path.removeprefix(folder)
    return other if is_inside and os.path.lexists(other) else path
