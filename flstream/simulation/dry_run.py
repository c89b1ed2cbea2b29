"""Dry run of a job's workflows: the first round of each, without effects.

It is a replay whose journal makes up what came of each effect.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from flstream.aggregation.rules import rule_for
from flstream.debugging import sentence
from flstream.engines.child_process import EndedProcessError, ProcessCall
from flstream.engines.fork_server import temporary_prefix
from flstream.engines.processes import ProcessHost
from flstream.errors import DeadlineError, FlstreamError, MisfitError, WorkflowError
from flstream.job import Job, JobError, Problem
from flstream.job.bodies import INNER_STEPS, NUM_STEPS
from flstream.job.checks import workflow_name
from flstream.job.clients_section import SamplerSection
from flstream.job.stage import Stage
from flstream.model.selection import ModelParts
from flstream.runs.results import (
    CollectResult,
    FoldResult,
    NextResult,
    ScoreResult,
    TaskCost,
    TrainResult,
    UpdateRecord,
)
from flstream.runs.run_directory import RunDirectory
from flstream.server.context import ServerContext
from flstream.server.effects import Effect, EffectFailedError
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model, ProgramOutline, Update, Updates
from flstream.server.run import Run
from flstream.server.run_state import RunState
from flstream.telemetry.events import ModelRecord, Transfer
from flstream.text import shortened
from flstream.worker.meta import pack_values, sent_names

_SECONDS = 10.0  # for the program of one workflow, with its imports
_MOST_EFFECTS = 10_000


class _DryJournal:
    """Journal in which all sites have done each effect, in one step and with metrics of 0."""

    is_live = False

    def __init__(self, job: Job, stage: Stage) -> None:
        self.asked = 0
        self.outline = ProgramOutline(stage.name)
        self._key_metric, self._every = job.key_metric, stage.args.evaluate_every
        self._evaluate = "evaluate at the server" if job.is_scored_centrally else "evaluate"
        self._started: dict[int, list[str]] = {}  # sites, by number of the effect
        self._answered = 0  # of those, how many have answered since the last model was made
        self._models: dict[int, int] = {}  # how many there are, by round

    def once(
        self, kind: str, round_number: int, request: str, arguments: Any, *_: object, **__: object
    ) -> Effect[Any]:
        """Record an effect, and return a made-up result."""
        self.asked += 1
        outline, model = self.outline, None
        result: Any = None
        has_names = isinstance(arguments, dict)
        sites = arguments.get("sites", []) if has_names else []
        if has_names:
            updates = arguments.get("updates", [])
            for training in (arguments, *(part for part in updates if isinstance(part, dict))):
                outline.has_replicas |= INNER_STEPS in sent_names(training.get("meta") or b"")
                parts = {name: training[name] for name in ModelParts._fields if name in training}
                if parts:
                    outline.parts.append((len(training["sites"]), parts))
        match kind:
            case "train":  # and no part of a fold
                outline.reads = True
                # Its updates lie somewhere, which tells answers that have tensors.
                result = replace(self._train(sites), updates=dict.fromkeys(sites, UpdateRecord()))
            case "start":
                outline.trained += 1
                self._started[self.asked], result = sites, arguments["model"][0]
                outline.in_flight = max(outline.in_flight, len(self._started))
                outline.waiting = max(outline.waiting, len(self._started) + self._answered)
                self._add("start")
            case "next":
                outline.reads = True
                number = next(iter(self._started))
                sites = self._started.pop(number)
                self._answered += 1
                result = NextResult(number, sites[0], _trained(sites))
                self._add("next")
            case "fold" | "adopt":
                unread = [update for update in arguments["updates"] if isinstance(update, dict)]
                train = self._train(unread[0]["sites"]) if unread else None
                result = FoldResult({}, {}, {}, 0.0, 0.0, Transfer(), [], train=train)
                self._answered = 0
                model = self._new_model(round_number)
                if "step" in arguments:
                    outline.moments = sorted({*outline.moments, *arguments["step"][-1]})
                outline.combines = outline.combines or "tensors" in arguments
                self._add(f"{kind} at a site" if "at" in arguments else kind)
            case "evaluate":
                result = ScoreResult(defaultdict(float), {}, {})
                often = "" if self._every == 1 else f" each {self._every} rounds"
                self._add(f"{self._evaluate}{often}")
            case "collect":
                outline.collected += len(sites)
                result = CollectResult(dict.fromkeys(sites, ""), {}, [])
                self._add(f"collect from {_counted(sites)}")
            case "score":
                outline.scored += len(sites)
                result = ScoreResult({}, {}, {}, {self._key_metric: [0.0] * len(sites)})
                self._add(f"score at {_counted(sites)}")
            case "store" | "merge":
                model = self._new_model(round_number)
                outline.merges |= kind == "merge"
                self._add(kind)
            case "remember":
                result = b""
            case "report":
                result = ScoreResult({}, {}, {})
                self._add("report")
            case "write_json":
                self._add(f"write {arguments['path']}")
        return Effect(self.asked, result, model, False)

    def _new_model(self, round_number: int) -> ModelRecord:
        step = self._models.get(round_number, 0)
        self._models[round_number] = step + 1
        return ModelRecord(round_number, sum(self._models.values()), step, "")

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
    meta = pack_values({NUM_STEPS: 1})
    return TrainResult(sites, [1.0] * count, metrics, [meta], [0] * count, TaskCost())


def outline_programs(job: Job, host: ProcessHost | None = None) -> list[ProgramOutline]:
    """Run the workflows of a job dry.

    Args:
        job: The job.
        host: Host of a process for each workflow of the user's own, which may end, go on for ever,
            or leave something behind; None to take it as it declares itself, and not to call it.
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
    problems += _unused_keys(job, outlines)
    if problems:
        raise JobError(f"the job {job.name}", problems)
    return outlines


def _unused_keys(job: Job, outlines: list[ProgramOutline]) -> list[Problem]:
    """Return the keys on a round's sites that workflows which ask one site at a time leave out."""
    known = all(outline.effects and not outline.flaw for outline in outlines)
    starts = [outline.name for outline in outlines if "start" in outline.effects]
    if not (known and starts):
        return []
    waits = any(effect.startswith("train ") for outline in outlines for effect in outline.effects)
    unused = {
        "stragglers.policy": job.stragglers.is_on and not waits,
        "clients.sampler.type": not job.clients.sampler.is_uniform
        and not any(outline.samples for outline in outlines),
    }
    reason = f"{starts[0]} starts one site at a time and would not use it; leave it out"
    return [Problem(key, reason) for key, is_unused in unused.items() if is_unused]


def _outline_apart(job: Job, place: int, host: ProcessHost) -> ProgramOutline:
    """Run a user's own workflow dry, in a process."""
    target = f"{__name__}:{outline_of.__name__}"
    call = ProcessCall[ProgramOutline](host, "dry-run", ProgramOutline, target, job, place)
    try:
        return call.result(seconds=_SECONDS)
    except DeadlineError:
        flaw = f"it went on for more than {_SECONDS:g} s"
    except EndedProcessError as error:
        flaw = f"its process {error.how}"
    return ProgramOutline(job.stages[place].name, flaw=flaw)


def outline_of(job: Job, place: int = 0) -> ProgramOutline:
    """Run a workflow of a job's list in this process, without effects.

    It finds one update of each site that is asked, whose metrics are 0, and which took one step;
    ``run.rounds()`` ends after its first round. A name that the program uses and nobody has defined
    rules the job out.
    """
    stage = job.stages[place]
    # A sampler chooses by what sites report, and may be the user's own code.
    clients = job.clients.model_copy(update={"sampler": SamplerSection()})
    job = job.model_copy(update={"rounds": 1, "clients": clients})
    journal: Any = _DryJournal(job, stage)
    outline: ProgramOutline = journal.outline
    nobody: Any = None
    state: RunState | None = None
    try:
        # A fork server removes what is left of it if the program ends the process.
        with tempfile.TemporaryDirectory(prefix=temporary_prefix(os.getppid())) as folder:
            run, rule = RunDirectory(Path(folder)), rule_for(job.aggregation)
            context = ServerContext(
                job, run, nobody, nobody, rule, lambda *_: None, nobody, nobody, ()
            )
            store = ModelStore(context)
            state = RunState(context, journal, store)
            first = store.add(ModelRecord(0, 0, 0, ""), 0)
            state.begin_stage(place)
            run_of_stage = Run(state, stage.args, 0, is_last_stage=True)
            stage.load_program()(run_of_stage)
            outline.samples = run_of_stage.has_sampled
            own = set(store.own_bodies(first))
            outline.bodies = [name for name in store.bodies(first) if name not in own]
            if not stage.is_own:
                outline.own = store.shapes_of_own(first)
            state.trainings.check_done()
    except BaseException as error:  # what an effect refuses with is no Exception
        is_ours = isinstance(error, FlstreamError | EffectFailedError)
        text = str(error) if is_ours else sentence(error, stage.program_file) + _meant(error)
        outline.flaw = shortened(text, 300)
        is_misfit = state is not None and isinstance(state.failure, MisfitError)
        if is_misfit or _is_unknown_name(error):
            outline.misfit = text
    return outline


def _is_unknown_name(error: BaseException) -> bool:
    """Whether an error is of a name that nobody has defined, whatever sites answer."""
    of_face = isinstance(getattr(error, "obj", None), Run | Model | Update | Updates)
    return isinstance(error, NameError) or (isinstance(error, AttributeError) and of_face)


def _meant(error: BaseException) -> str:
    """The name that was meant, as a clause."""
    if not isinstance(error, AttributeError):
        return ""
    near = get_close_matches(str(error.name), dir(error.obj), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _counted(sites: Sequence[str]) -> str:
    return f"{len(sites):,} site" + ("" if len(sites) == 1 else "s")
