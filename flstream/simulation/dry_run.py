"""A dry run of a job's workflows: what each does in its first round, with no effect done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec

from flstream.aggregation.rules import rule_for
from flstream.engines.processes import ProcessHost
from flstream.errors import DeadlineError, FlstreamError, WorkflowError
from flstream.job import Job
from flstream.job.stage import Stage
from flstream.runs.stopping import EarlyStopping
from flstream.server.arguments import check_bodies, check_idle, check_model, check_name, fold_rules
from flstream.server.asked_kinds import AskedKinds
from flstream.server.cohort import FoldedUpdates
from flstream.server.program_view import (
    Model,
    SiteModel,
    SiteModels,
    SiteScores,
    Update,
    Updates,
)
from flstream.server.run import Run
from flstream.server.sampling import check_sites
from flstream.server.uncatchable import EffectFailedError
from flstream.simulation.process_call import NoAnswerError, ProcessCall, result_of
from flstream.text import shortened

_SECONDS = 10.0  # for the program of one workflow, with its imports
_MOST_EFFECTS = 10_000
_LONGEST_PATTERN = 8


class ProgramOutline(msgspec.Struct):
    """Effects of a workflow in its first round, and after its rounds.

    Attributes:
        name: Name of the workflow.
        effects: The effects in words, such as ``train 4 sites``.
        trained: How many sites train.
        scored: How many sites score a model of ``run.score``.
        collected: How many sites send a model of their own.
        reads: Whether it reads updates before they are folded, which then wait in files.
        flaw: Why the program could not be run to its end without doing anything; empty if it was.
    """

    name: str
    effects: list[str] = []
    trained: int = 0
    scored: int = 0
    collected: int = 0
    reads: bool = False
    flaw: str = ""

    def __str__(self) -> str:
        if self.flaw:
            taken = "taken for one that trains, folds and evaluates"
            return f"{self.name}, {taken}: a dry run has no answers to go by ({self.flaw})"
        return f"{self.name}: {', '.join(_repeated(self.effects)) or 'nothing'}"


class _Metrics(dict[str, float]):
    """Metrics that nobody has measured: whatever is looked up is 0."""

    def __missing__(self, name: str) -> float:
        return 0.0


class _DryTraining:
    """A training that nobody does, with an update of each of its sites."""

    number, is_done, is_folded = 0, True, False

    def __init__(self, effects: _DryEffects, model: Model, sites: Sequence[str]) -> None:
        self.base, self.sites, self.round = model, list(sites), effects.state.round
        self._effects = effects

    def __str__(self) -> str:
        return f"train {_counted(self.sites)}"

    def updates(self) -> Sequence[Update]:
        self._effects.read(self)
        training: Any = self
        return [Update(site, 1.0, _Metrics(), self.base, training) for site in self.sites]

    def failures(self) -> Mapping[str, str]:
        self._effects.read(self)
        return {}


class _DryEffects:
    """The effects of a run that does nothing, as :class:`~flstream.server.run.Run` calls them."""

    def __init__(self, job: Job, stage: Stage) -> None:
        self.outline = ProgramOutline(stage.name)
        # Trainings that were neither read nor folded.
        self.pending: list[_DryTraining] = []
        self.trainings = self.models = self.sites = self
        self.in_flight: dict[str, Model] = {}
        self._versions = count(1)
        self._every = stage.args.evaluate_every
        self._rule = rule_for(job.aggregation)
        self._bodies: list[str] = []
        names = job.clients.site_names
        kinds = AskedKinds()
        kinds.source = stage.args.evaluate
        self.state = SimpleNamespace(
            context=SimpleNamespace(job=job),
            sites=list(names),
            evaluators=kinds.evaluators(names),
            scores=SimpleNamespace(best=None, best_version=None),
            trainer=SimpleNamespace(waits=None),
            private=None,
            failure=None,
            round=0,
            stage=job.stages.index(stage),
            begin_round=self._begin_round,
            in_flight=self.in_flight,
            hold_models=lambda: None,
            emit_live=lambda *events: None,
            check_sites=lambda method, sites: check_sites(method, sites, names),
            check_model=check_model,
            check_name=check_name,
        )

    def begin(self, version: int, bodies: Mapping[str, object]) -> Model:
        check_bodies(bodies)
        self._bodies = list(bodies)
        return Model(self.state.round, version, "")

    def ask(self, model: Model, sites: Sequence[str], *_: object, **values: object) -> Updates:
        check_model("train", model)
        self.state.check_sites("train", sites)
        self._add(f"train {_counted(sites)}")
        self.outline.trained += len(sites)
        check_idle("train", sites, self.in_flight)
        training: Any = _DryTraining(self, model, sites)
        self.pending.append(training)
        return Updates(training)

    def start(self, site: str, model: Model, *_: object) -> None:
        check_model("start", model)
        self.state.check_sites("start", [site])
        check_idle("start", [site], self.in_flight)
        self._add("start")
        self.outline.trained += 1
        self.in_flight[site] = model

    def next(self) -> Update:
        if not self.in_flight:
            raise WorkflowError("run.next() was called with no training in flight")
        self._add("next")
        site = next(iter(self.in_flight))
        return _DryTraining(self, self.in_flight.pop(site), [site]).updates()[0]

    def fold(
        self,
        model: Model,
        updates: Sequence[Update],
        rule: object,
        bodies: Mapping[str, object],
        at: object,
    ) -> Model:
        check_model("fold", model)
        rules = fold_rules(self._rule, self._bodies, rule, bodies)
        cohort = FoldedUpdates.of(updates).under(rules)
        cohort.check_base(model)
        self._settle(cohort)
        self._add("fold" if at is None else "fold at a site")
        return self._next_model()

    def adopt(self, updates: Sequence[Update]) -> Model:
        self._settle(FoldedUpdates.of(updates, "adopt"))
        self._add("adopt")
        return self._next_model()

    def evaluate(self, model: Model, meta: object, *, is_provisional: bool) -> dict[str, float]:
        self._add("evaluate" if self._every == 1 else f"evaluate each {self._every} rounds")
        return _Metrics()

    def collect(self, name: str, sites: Sequence[str], timeout: object) -> SiteModels:
        self._add(f"collect from {_counted(sites)}")
        self.outline.collected += len(sites)
        return SiteModels({site: SiteModel(site, "", 0) for site in sites})

    def score(self, model: object, sites: Sequence[str], *_: object, counts: bool) -> SiteScores:
        self._add(f"score at {_counted(sites)}")
        self.outline.scored += len(sites)
        return SiteScores({site: _Metrics() for site in sites})

    def write_json(self, path: str, value: object) -> None:
        self._add(f"write {path}")

    def _settle(self, cohort: FoldedUpdates) -> None:
        trainings: Any = cohort.trainings
        if (unread := cohort.unread) is not None:
            unread.is_folded = True
        self.pending = [training for training in self.pending if training not in trainings]

    def read(self, training: _DryTraining) -> None:
        self.outline.reads = True
        if training in self.pending:
            self.pending.remove(training)

    def _begin_round(self) -> None:
        self.state.round += 1

    def _next_model(self) -> Model:
        return Model(self.state.round, next(self._versions), "")

    def _add(self, effect: str) -> None:
        self.outline.effects.append(effect)
        if len(self.outline.effects) > _MOST_EFFECTS:
            raise WorkflowError(f"its first round has more than {_MOST_EFFECTS:,} effects")


def outline_programs(job: Job, host: ProcessHost) -> list[ProgramOutline]:
    """Run the workflows of a job dry, each in a process that may end, or go on for ever.

    Args:
        job: The job.
        host: Host of the processes.
    """
    outlines, target = [], f"{__name__}:{outline_of.__name__}"
    for place, stage in enumerate(job.stages):
        call = ProcessCall[ProgramOutline](host, "dry-run", ProgramOutline, target, job, place)
        try:
            outlines.append(result_of(call, seconds=_SECONDS))
        except DeadlineError:
            flaw = f"it went on for more than {_SECONDS:g} s"
            outlines.append(ProgramOutline(stage.name, flaw=flaw))
        except NoAnswerError as error:
            outlines.append(ProgramOutline(stage.name, flaw=f"its process {error}"))
    return outlines


def outline_of(job: Job, place: int = 0) -> ProgramOutline:
    """Run a workflow of a job without doing anything: its first round.

    The program is called in this process. It finds one update of each site that is asked, whose
    metrics are 0; ``run.rounds()`` ends after its first round.

    Args:
        job: The job.
        place: Place of the workflow in the job's list.
    """
    stage = job.stages[place]
    recorder: Any = _DryEffects(job, stage)
    run = Run(recorder, stage.args, EarlyStopping(job), 0, is_last_stage=True)
    run._last_round = 1
    try:
        stage.load_program()(run)
    except BaseException as error:  # what an effect refuses with is no Exception
        is_own = isinstance(error, FlstreamError | EffectFailedError)
        text = str(error) if is_own else f"{type(error).__name__}: {error}".rstrip(": ")
        return ProgramOutline(stage.name, flaw=shortened(text, 300))
    if recorder.pending:
        flaw = f"{recorder.pending[0]} was neither read nor folded"
        return ProgramOutline(stage.name, flaw=flaw)
    outline: ProgramOutline = recorder.outline
    return outline


def _repeated(effects: Sequence[str]) -> Iterator[str]:
    """Effects in words, those that are repeated in brackets with how often."""
    place = 0
    while place < len(effects):
        length, times = 1, 1
        for size in range(1, _LONGEST_PATTERN + 1):
            pattern, repeats = effects[place : place + size], 1
            while effects[place + repeats * size : place + (repeats + 1) * size] == pattern:
                repeats += 1
            if repeats > 1 and repeats * size > length * times:
                length, times = size, repeats
        pattern = effects[place : place + length]
        text = ", ".join(pattern)
        if times > 1:
            text = f"{times} x ({text})" if length > 1 else f"{times} x {text}"
        yield text
        place += length * times


def _counted(sites: Sequence[str]) -> str:
    return f"{len(sites):,} site" + ("" if len(sites) == 1 else "s")
