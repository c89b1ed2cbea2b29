"""The federation of a simulated run: sites in processes on this machine, behind pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import rule_for
from flstream.aggregation.steps import plan_steps
from flstream.client.messages import TaskKind
from flstream.client.state import discard_after
from flstream.errors import ChannelClosedError, SimulationError
from flstream.job import Job
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.descriptors import is_ours_alone
from flstream.model.digests import ChunkDigester
from flstream.model.layout import Layout
from flstream.simulator.crew.crew import Crew, Lost, Retired
from flstream.simulator.crew.listening import Heard
from flstream.simulator.files.model_files import ModelFiles
from flstream.simulator.files.resume import ResumePoint
from flstream.simulator.files.retention import stored_rounds
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.files.small_files import temporary_of
from flstream.simulator.initial_model import BuildReport, NotBuilt
from flstream.simulator.rounds.disk import check_round, check_run
from flstream.simulator.rounds.evaluation import Evaluation
from flstream.simulator.rounds.failures import FailureRecord, brief
from flstream.simulator.rounds.gathering import Gathering
from flstream.simulator.rounds.plan import RoundPlan, plan_disk, plan_round
from flstream.simulator.rounds.reporting import report_heard, report_replaced
from flstream.simulator.rounds.settings import stream_settings
from flstream.simulator.rounds.spool import Spool
from flstream.simulator.rounds.tasks import Assignment
from flstream.simulator.rounds.training import Training
from flstream.simulator.rounds.weights import check_weights, weighted_metrics
from flstream.streaming.frames import LEAST_LENT
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    Evaluated,
    Metrics,
    ModelReady,
    RoundFinished,
    RoundStarted,
    SiteBenched,
    SiteFailed,
    Warned,
)
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel
from flstream.workflows.federation import GlobalModel

_TRAINS_TO_EVALUATE = (
    "the code answers evaluation tasks with a model too, so it may train where it need not; "
    "branch on is_evaluate(), or set workflow.args.evaluate_every = 0"
)

Emit = Callable[[AnyEvent], None]


class LocalFederation:
    """Does for a workflow what it asks for: see :class:`flstream.workflows.federation.Federation`.

    Args:
        job: the job.
        run: its run directory.
        crew: the workers.
        service: offers models to them.
        builder: where the builder process says that the initial model is there; None if the run
            goes on from a later one.
        emit: takes every event.
        abort: raised to stop the run.
        resume: where an earlier server left off; None at the beginning.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        crew: Crew,
        service: DownloadService,
        builder: MessageChannel[BuildReport] | None,
        emit: Emit,
        abort: AbortSignal,
        resume: ResumePoint | None,
    ) -> None:
        self._job = job
        self._run = run
        self._crew = crew
        self._service = service
        self._builder = builder
        self._emit = emit
        self._abort = abort
        self._resume = resume
        self._warned = False
        self._rule = rule_for(job.aggregation)
        self._files = ModelFiles(job, run, self._rule, self.evaluations)
        events = resume.events if resume is not None else ()
        self._failures = FailureRecord(job.clients.bench_after, events)

    @property
    def sites(self) -> Sequence[str]:
        """The names of all sites that are asked, in their fixed order."""
        benched = set(self._failures.benched)
        return [name for name in self._job.clients.names if name not in benched]

    @property
    def evaluations(self) -> Sequence[tuple[int, Metrics]]:
        """What was found of the models of earlier rounds, if the run goes on."""
        return self._resume.evaluations if self._resume is not None else ()

    def model(self) -> GlobalModel:
        """The model to begin with, or to go on from. Workers get ready meanwhile.

        Raises:
            SimulationError: there is none, or too few workers are of any use.
        """
        names = self._crew.names
        gathering: Gathering[None] = Gathering("begin", names, self._least(len(names)))
        for said in self._crew.prepare():
            match said:
                case Heard():
                    report_heard(said, self._emit)
                case Lost(name, said_why):
                    reason = brief(said_why)
                    self._tell(SiteFailed(round=0, site=name, reason=reason))
                    gathering.fail(name, reason)
                case Retired():
                    report_replaced(said, self._emit)
        model = self._initial() if self._builder is not None else self._resumed()
        self._run.forget_updates(but=model.round + 1)
        layout = FileSource(model.path).layout
        warning = check_run(
            plan_disk(self._job, layout, self._job.clients.cohort_size),
            self._run.path,
            done=model.round,
            stored=len(stored_rounds(self._run)),
            present=self._present(model.round + 1),
        )
        if warning is not None:
            self._emit(Warned(message=warning))
        return model

    def train(self, model: GlobalModel, cohort: Sequence[str]) -> Training:
        """Have the cohort train the model."""
        number = model.round + 1
        base = FileSource(model.path, model.chunk_digests)
        plan = self._plan(base.layout, len(cohort))
        disk, there = plan_disk(self._job, base.layout, len(cohort)), self._present(number)
        check_round(disk, self._run.path, number, present=there)
        self._emit(RoundStarted(round=number, sites=list(cohort)))
        waits = not (plan.own or plan.in_memory)
        is_resumed = self._resume is not None and number == (self._resume.round or 0) + 1
        spool = Spool(self._run.updates(number), model.digest, base.layout) if waits else None
        sums = None
        if plan.group and spool is not None:
            path, label = spool.folder / "sum.safetensors", f"round {number} from {model.digest}"
            sums = PartialSum(path, base, self._rule, label)
        training = Training(
            self._job,
            self._assignment("train", number, base, cohort),
            cohort,
            plan,
            base,
            self._rule,
            spool,
            sums,
            self._service,
            self._tell,
            self._abort,
            self._run.site,
        )
        taken_up = training.take_up() if is_resumed else set()
        if is_resumed:
            self._forget_states(model.round, taken_up)
        training.run(self._crew)
        return training

    def aggregate(self, model: GlobalModel, training: Training) -> GlobalModel:
        """Walk over the updates, into the next checkpoint."""
        began = time.monotonic()
        check_weights(training.told)
        base, number = FileSource(model.path), model.round + 1
        path = self._run.checkpoint(number)
        metadata = {"format": "pt", "flstream.round": str(number)}
        # Sites are sent it in chunks, whose digests are at hand now. Frames that are not lent do
        # not look them up: those are digested while they are copied.
        chunk_size = self._stream_settings().frame_size
        digester = None
        if chunk_size >= LEAST_LENT:
            digester = ChunkDigester(base.layout.nbytes, chunk_size)
        with ExitStack() as stack:
            sink = FileSink(path, base.layout, metadata, digester=digester)
            stack.enter_context(sink)
            optimization = self._files.optimization(stack, number, base.layout)
            digest = training.finish(lambda fold, left: fold.finish(left, sink, optimization))
            folded = time.monotonic()
            # The state first: where a model is, what its round has to remember is, too.
            state = self._files.finish_state(number, optimization)
            sink.finish()
        ended = time.monotonic()
        download, train, fetch = training.seconds
        fold = folded - began
        self._tell(
            RoundFinished(
                round=number,
                digest=digest,
                optimizer_state=state,
                download=download,
                train=train,
                upload_and_fold=fetch + fold,
                checkpoint=ended - folded,
                weights={site: told.weight for site, told in training.told.items()},
                metrics=weighted_metrics(list(training.told.values())),
                down=msgspec.structs.replace(training.down, seconds=download),
                up=msgspec.structs.replace(training.up, seconds=fetch + fold),
            )
        )
        # Only what is durable is settled: until now the sites still had all it takes to fold again.
        training.release()
        self._retire(number)
        self._bench(number)
        return GlobalModel(number, path, digest, digester.digests if digester else None)

    def evaluate(self, model: GlobalModel, cohort: Sequence[str]) -> Mapping[str, float]:
        """Have the cohort score the model."""
        began = time.monotonic()
        base = FileSource(model.path, model.chunk_digests)
        plan = self._plan(base.layout, len(cohort))
        evaluation = Evaluation(self._job, self._service, self._tell, cohort, plan)
        assignment = self._assignment("evaluate", model.round, base, cohort)
        scored, down = evaluation.run(self._crew, assignment)
        metrics = weighted_metrics(scored)
        if not self._warned and any(each.has_params for each in scored):
            self._warned = True
            self._emit(Warned(message=_TRAINS_TO_EVALUATE))
        seconds = time.monotonic() - began
        self._tell(Evaluated(round=model.round, metrics=metrics, seconds=seconds, down=down))
        if self._files.note(model.round, metrics):
            self._retire(model.round)
        return metrics

    def end_early(self, model: GlobalModel, reason: str) -> None:
        """Say why a model is the last, though the job has more rounds."""
        self._tell(EndedEarly(round=model.round, reason=reason))

    def warn(self, message: str) -> None:
        """Say something that is not wrong, but most likely not meant."""
        self._emit(Warned(message=message))

    def dismiss(self, seconds: float) -> None:
        """Tell the workers that the run is over, and give their code ``seconds`` to end."""
        for said in self._crew.dismiss(seconds):
            if isinstance(said, Heard):
                report_heard(said, self._emit)

    def _initial(self) -> GlobalModel:
        assert self._builder is not None
        try:
            report = self._builder.receive(abort=self._abort)
        except ChannelClosedError as error:
            raise SimulationError(
                "the process that builds the initial model died; see model-builder.log"
            ) from error
        if isinstance(report, NotBuilt):
            raise SimulationError(report.reason)
        self._tell(ModelReady(bytes=report.bytes, tensors=report.tensors, digest=report.digest))
        return GlobalModel(0, self._run.checkpoint(0), report.digest)

    def _resumed(self) -> GlobalModel:
        assert self._resume is not None
        assert self._resume.round is not None
        number = self._resume.round
        digests = [
            event.digest
            for event in self._resume.events
            if isinstance(event, ModelReady | RoundFinished)
        ]
        # The earlier server may have been lost before it had said who is asked no more, and before
        # it had removed what it need not keep. And the job may keep less now.
        self._bench(number)
        self._retire(number)
        return GlobalModel(number, self._run.checkpoint(number), digests[-1])

    def _forget_states(self, round_number: int, but: Collection[str]) -> None:
        """Have sites' own states be as they were after a round, but for those that went on."""
        for folder in self._run.sites.iterdir():
            if folder.name not in but:
                discard_after(folder, round_number)

    def _assignment(
        self, kind: TaskKind, number: int, base: FileSource, cohort: Sequence[str]
    ) -> Assignment:
        job = self._job
        settings = self._stream_settings()
        frame = plan_steps(
            base.layout,
            self._rule,
            updates=len(cohort),
            chunk_size=settings.frame_size,
            memory_budget=job.aggregation.memory_budget,
        ).frame
        seconds = job.clients.round_timeout
        return Assignment(kind, number, job.rounds, base, job.seed, settings, frame, seconds)

    def _stream_settings(self) -> StreamSettings:
        return stream_settings(self._job, self._job.train.exchange_format)

    def _plan(self, layout: Layout, cohort: int) -> RoundPlan:
        return plan_round(self._job, layout.nbytes, cohort, is_ranked=self._rule.is_ranked)

    def _least(self, count: int) -> int:
        return min(self._job.clients.min_updates or count, count)

    def _present(self, number: int) -> int:
        """Bytes on disk already of what a round writes."""
        folder = self._run.updates(number)
        there = list(folder.iterdir()) if folder.is_dir() else []
        models = self._run.checkpoint(number), self._run.optimizer_state(number)
        there += filter(is_ours_alone, map(temporary_of, models))
        return sum(path.stat().st_size for path in there)

    def _retire(self, last: int) -> None:
        for warning in self._files.retire(last):
            self._emit(Warned(message=warning))

    def _bench(self, number: int) -> None:
        for site in self._failures.due():
            count = self._job.clients.bench_after
            self._tell(SiteBenched(round=number, site=site, failures=count))

    def _tell(self, event: AnyEvent) -> None:
        self._failures.note(event)
        self._emit(event)
