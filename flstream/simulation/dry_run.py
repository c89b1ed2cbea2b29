"""A dry run of a job's workflows: what each does in its first round, with no effect done.

It is a replay whose journal makes up what came of each effect.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flstream.aggregation.rules import rule_for
from flstream.engines.fork_server import temporary_prefix
from flstream.engines.processes import ProcessHost
from flstream.errors import DeadlineError, FlstreamError, WorkflowError
from flstream.job import Job
from flstream.job.stage import Stage
from flstream.runs.run_directory import RunDirectory
from flstream.runs.stopping import EarlyStopping
from flstream.server.collecting import CollectResult
from flstream.server.context import ServerContext
from flstream.server.effects import Effect
from flstream.server.model_store import ModelStore
from flstream.server.play import RunEffects
from flstream.server.round_totals import FoldResult
from flstream.server.run import Run
from flstream.server.run_state import RunState
from flstream.server.scoring import ScoreResult
from flstream.server.training import NextResult, TaskCost, TrainResult
from flstream.server.uncatchable import EffectFailedError
from flstream.simulation.process_call import NoAnswerError, ProcessCall
from flstream.telemetry.events import ModelRecord, Transfer
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


class _DryJournal:
    """A journal by which all sites have done each effect, with metrics of 0."""

    is_live = False

    def __init__(self, job: Job, stage: Stage) -> None:
        self.asked = 0
        self.outline = ProgramOutline(stage.name)
        self._key_metric, self._every = job.key_metric, stage.args.evaluate_every
        self._started: dict[int, list[str]] = {}  # sites, by number of the effect
        self._models: dict[int, int] = {}  # how many there are, by round

    def once(
        self, kind: str, round_number: int, request: str, arguments: Any, *_: object, **__: object
    ) -> Effect[Any]:
        """Note an effect, and return a result that is made up."""
        self.asked += 1
        outline, model = self.outline, None
        result: Any = None
        sites = [] if kind == "next" else arguments.get("sites", [])
        match kind:
            case "train":  # and no part of a fold
                outline.reads = True
                result = self._train(sites)
            case "start":
                outline.trained += 1
                self._started[self.asked], result = sites, arguments["model"][0]
                self._add("start")
            case "next":
                outline.reads = True
                result = NextResult(arguments[0], _trained(self._started[arguments[0]]))
                self._add("next")
            case "fold" | "adopt":
                unread = [each for each in arguments["updates"] if isinstance(each, dict)]
                train = self._train(unread[0]["sites"]) if unread else None
                result = FoldResult({}, {}, {}, 0.0, 0.0, Transfer(), [], train=train)
                step = self._models.get(round_number, 0)
                self._models[round_number] = step + 1
                model = ModelRecord(round_number, sum(self._models.values()), step, "")
                self._add(f"{kind} at a site" if "at" in arguments else kind)
            case "evaluate":
                result = ScoreResult(defaultdict(float), {}, {})
                self._add("evaluate" if self._every == 1 else f"evaluate each {self._every} rounds")
            case "collect":
                outline.collected += len(sites)
                result = CollectResult(dict.fromkeys(sites, ""), {}, [])
                self._add(f"collect from {_counted(sites)}")
            case "score":
                outline.scored += len(sites)
                result = ScoreResult({}, {}, {}, {self._key_metric: [0.0] * len(sites)})
                self._add(f"score at {_counted(sites)}")
            case "write_json":
                self._add(f"write {arguments['path']}")
        return Effect(self.asked, result, model, False)

    def _train(self, sites: list[str]) -> TrainResult:
        self.outline.trained += len(sites)
        self._add(f"train {_counted(sites)}")
        return _trained(sites)

    def _add(self, effect: str) -> None:
        self.outline.effects.append(effect)
        if len(self.outline.effects) > _MOST_EFFECTS:
            raise WorkflowError(f"its first round has more than {_MOST_EFFECTS:,} effects")


def _trained(sites: list[str]) -> TrainResult:
    count = len(sites)
    metrics: list[dict[str, float]] = [defaultdict(float)] * count
    return TrainResult(sites, [1.0] * count, metrics, [b""], [0] * count, {}, {}, [], TaskCost())


def outline_programs(job: Job, host: ProcessHost) -> list[ProgramOutline]:
    """Run the workflows of a job dry, each in a process that may end, or go on for ever."""
    outlines, target = [], f"{__name__}:{outline_of.__name__}"
    for place, stage in enumerate(job.stages):
        call = ProcessCall[ProgramOutline](host, "dry-run", ProgramOutline, target, job, place)
        try:
            outlines.append(call.result(seconds=_SECONDS))
        except DeadlineError:
            flaw = f"it went on for more than {_SECONDS:g} s"
            outlines.append(ProgramOutline(stage.name, flaw=flaw))
        except NoAnswerError as error:
            outlines.append(ProgramOutline(stage.name, flaw=f"its process {error}"))
    return outlines


def outline_of(job: Job, place: int = 0) -> ProgramOutline:
    """Run a workflow of a job's list, called in this process, without doing anything.

    It finds one update of each site that is asked, whose metrics are 0; ``run.rounds()`` ends after
    its first round.
    """
    stage = job.stages[place]
    job = job.model_copy(update={"rounds": 1})
    journal: Any = _DryJournal(job, stage)
    nobody: Any = None
    try:
        # A fork server removes what is left of it if the program ends the process.
        with tempfile.TemporaryDirectory(prefix=temporary_prefix(os.getppid())) as folder:
            run, rule = RunDirectory(Path(folder)), rule_for(job.aggregation)
            context = ServerContext(job, run, nobody, nobody, rule, lambda *_: None, nobody)
            store = ModelStore(context)
            effects, stopping = RunEffects(RunState(context, journal, store)), EarlyStopping(job)
            store.add(ModelRecord(0, 0, 0, ""), 0)
            effects.state.begin_stage(place, stopping)
            stage.load_program()(Run(effects, stage.args, stopping, 0, is_last_stage=True))
            effects.trainings.check_done()
    except BaseException as error:  # what an effect refuses with is no Exception
        is_own = isinstance(error, FlstreamError | EffectFailedError)
        text = str(error) if is_own else f"{type(error).__name__}: {error}".rstrip(": ")
        return ProgramOutline(stage.name, flaw=shortened(text, 300))
    outline: ProgramOutline = journal.outline
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
