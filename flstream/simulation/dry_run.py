"""A dry run of a job's workflows: what each does in its first round, with no effect done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from flstream.aggregation.fold_rule import ServerStep
from flstream.engines.processes import ProcessHost
from flstream.errors import DeadlineError, FlstreamError, MisfitError, WorkflowError
from flstream.job import Job, JobError, Problem
from flstream.job.checks import workflow_name
from flstream.job.stage import Stage
from flstream.runs.stopping import EarlyStopping
from flstream.server.arguments import (
    check_adopted,
    check_bodies,
    check_fold,
    check_idle,
    check_model,
    check_not_private,
    fold_rules,
)
from flstream.server.cohort import FoldedUpdates
from flstream.server.program_view import (
    Model,
    ProgramOutline,
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
        self.trainings = self.models = self.scoring = self.collection = self
        self.in_flight: dict[str, Model] = {}
        self._versions = count(1)
        self._every = stage.args.evaluate_every
        self._job = job
        names = job.clients.site_names
        self.state = SimpleNamespace(
            context=SimpleNamespace(job=job),
            sites=list(names),
            evaluators=[] if stage.args.evaluate == "received" else list(names),
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
        )

    def begin(self, version: int, bodies: Mapping[str, object]) -> Model:
        check_bodies(self._job, bodies)
        self.outline.bodies = list(bodies)
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
        check_not_private(self._job, "run.start() was called for one site", "run.train()")
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
        at: Sequence[str] | None,
        step: ServerStep | None,
    ) -> Model:
        check_model("fold", model)
        rules = fold_rules(self._job, self.outline.bodies, rule, bodies)
        cohort = FoldedUpdates.of(updates).under(rules)
        cohort.check_base(model)
        check_fold(self._job, cohort, step, at)
        if step is not None:
            self.outline.moments = list({*self.outline.moments, *step.moments})
        self._settle(cohort)
        self._add("fold" if at is None else "fold at a site")
        return self._next_model()

    def adopt(self, updates: Sequence[Update]) -> Model:
        self._settle(FoldedUpdates.of(check_adopted(self._job, updates), "adopt"))
        self._add("adopt")
        return self._next_model()

    def evaluate(self, model: Model, meta: object, *, is_provisional: bool) -> dict[str, float]:
        self._add("evaluate" if self._every == 1 else f"evaluate each {self._every} rounds")
        return _Metrics()

    def collect(self, name: str, sites: Sequence[str], timeout: object) -> SiteModels:
        check_not_private(self._job, "run.collect() takes models of single sites", "")
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


def outline_programs(job: Job, host: ProcessHost | None = None) -> list[ProgramOutline]:
    """Run the workflows of a job dry.

    Args:
        job: The job.
        host: Host of a process for each workflow of the user's own, which may end, go on for ever,
            or leave something behind; None to take it as it declares itself, and not to call it.

    Raises:
        JobError: A key of the job rules out what a workflow does.
    """
    outlines, problems = list[ProgramOutline](), list[Problem]()
    for place, stage in enumerate(job.stages):
        if not stage.is_own:
            outline = outline_of(job, place)
        elif host is not None:
            outline = _outline_apart(job, place, host)
        else:
            collected = job.clients.count if stage.collects_models else 0
            outline = ProgramOutline(stage.name, collected=collected)
        outlines.append(outline)
        if outline.misfit:
            key = f"{workflow_name(place, len(job.stages))}.type"
            problems.append(Problem(key, f"{stage.name}: {outline.misfit}"))
    if problems:
        raise JobError(f"the job {job.name}", problems)
    return outlines


def _outline_apart(job: Job, place: int, host: ProcessHost) -> ProgramOutline:
    """Run a workflow of the user's own dry, in a process."""
    target = f"{__name__}:{outline_of.__name__}"
    call = ProcessCall[ProgramOutline](host, "dry-run", ProgramOutline, target, job, place)
    try:
        return result_of(call, seconds=_SECONDS)
    except DeadlineError:
        flaw = f"it went on for more than {_SECONDS:g} s"
    except NoAnswerError as error:
        flaw = f"its process {error}"
    return ProgramOutline(job.stages[place].name, flaw=flaw)


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
    outline: ProgramOutline = recorder.outline
    run = Run(recorder, stage.args, EarlyStopping(job), 0, is_last_stage=True)
    run._last_round = 1
    try:
        stage.load_program()(run)
    except BaseException as error:  # what an effect refuses with is no Exception
        is_own = isinstance(error, FlstreamError | EffectFailedError)
        text = str(error) if is_own else f"{type(error).__name__}: {error}".rstrip(": ")
        outline.flaw = shortened(text, 300)
        if isinstance(recorder.state.failure, MisfitError):
            outline.misfit = text
    if recorder.pending and not outline.flaw:
        outline.flaw = f"{recorder.pending[0]} was neither read nor folded"
    return outline


def _counted(sites: Sequence[str]) -> str:
    return f"{len(sites):,} site" + ("" if len(sites) == 1 else "s")
