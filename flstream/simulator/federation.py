"""The federation of a simulated run: sites in processes on this machine, behind pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from flstream.aggregation.mean import Fold
from flstream.aggregation.walk import Update, fold_updates, plan_steps
from flstream.client.messages import Evaluation, Task, TaskKind, Trained
from flstream.errors import AbortedError, FlstreamError, SimulationError
from flstream.job import Job
from flstream.model.body import Source
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.memory import BufferSource, Framework
from flstream.simulator.answers import Answers, AnswerT
from flstream.simulator.initial_model import Built, NotBuilt
from flstream.simulator.run_directory import RunDirectory
from flstream.simulator.site import Site
from flstream.streaming.download import RemoteSource, StreamSettings, TransferStats
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    Progress,
    RoundFinished,
    RoundStarted,
    SiteState,
    Transfer,
)
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel
from flstream.workflows.federation import GlobalModel
from flstream.workflows.sampling import site_seed

Emit = Callable[[AnyEvent], None]


class LocalFederation:
    """Does for a workflow what it asks for: see :class:`flstream.workflows.federation.Federation`.

    Args:
        job: the job.
        run: its run directory.
        sites: the sites, by name, in their fixed order.
        service: offers models to them.
        builder: where the builder process says that the initial model is there.
        emit: takes every event.
        abort: raised to stop the run.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        sites: Mapping[str, Site],
        service: DownloadService,
        builder: MessageChannel,
        emit: Emit,
        abort: AbortSignal,
    ) -> None:
        self._job = job
        self._run = run
        self._sites = sites
        self._service = service
        self._builder = builder
        self._emit = emit
        self._abort = abort
        self._answers = Answers(sites, emit, abort, job.clients.round_timeout)
        # What training cost, kept until the round's event is written.
        self._train = 0.0
        self._down = Transfer()

    @property
    def sites(self) -> Sequence[str]:
        """The names of all sites."""
        return list(self._sites)

    def initial_model(self) -> GlobalModel:
        """Wait until the builder process has written round 0's checkpoint.

        Raises:
            SimulationError: it could not.
        """
        try:
            answer = self._builder.receive(abort=self._abort)
        except AbortedError:
            raise
        except FlstreamError as error:
            raise SimulationError(
                "the process that builds the initial model died; "
                "the model may be larger than this machine's memory"
            ) from error
        if isinstance(answer, NotBuilt):
            raise SimulationError(answer.reason)
        assert isinstance(answer, Built)
        self._emit(ModelReady(bytes=answer.bytes, tensors=answer.tensors, digest=answer.digest))
        return GlobalModel(0, self._run.checkpoint(0), answer.digest)

    def train(
        self, model: GlobalModel, cohort: Sequence[str], round_number: int
    ) -> Mapping[str, Trained]:
        """Offer the model to the cohort and wait until every site has trained it."""
        self._emit(RoundStarted(round=round_number, sites=list(cohort)))
        answers, self._down, self._train = self._ask("train", Trained, model, cohort, round_number)
        return answers

    def evaluate(
        self, model: GlobalModel, cohort: Sequence[str], round_number: int
    ) -> Mapping[str, float]:
        """Offer the model to the cohort and wait until every site has scored it."""
        answers, down, scoring = self._ask("evaluate", Evaluation, model, cohort, round_number)
        metrics = weighted_metrics(list(answers.values()))
        self._emit(
            Evaluated(
                round=round_number,
                metrics=metrics,
                seconds=down.seconds + scoring,
                down=down,
            )
        )
        return metrics

    def aggregate(
        self, model: GlobalModel, trained: Mapping[str, Trained], fold: Fold, round_number: int
    ) -> GlobalModel:
        """Walk over the updates where they lie, into the next checkpoint."""
        began = time.monotonic()
        base = FileSource(model.path)
        path = self._run.checkpoint(round_number)
        metadata = {"format": "pt", "flstream.round": str(round_number)}
        with ExitStack() as stack:
            remotes, updates, step = self._open_updates(trained, stack)
            sink = stack.enter_context(FileSink(path, base.layout, metadata))
            digest = fold_updates(base, updates, fold, sink, step, self._watch_walk(trained, base))
            folded = time.monotonic()
            sink.finish()
            ended = time.monotonic()
            # Only what is durable is settled: until now a site still had what it takes to do
            # this again.
            for remote in remotes:
                remote.close()
        self._emit(
            RoundFinished(
                round=round_number,
                digest=digest,
                download=self._down.seconds,
                train=self._train,
                upload_and_fold=folded - began,
                checkpoint=ended - folded,
                weights={site: answer.weight for site, answer in trained.items()},
                metrics=weighted_metrics(list(trained.values())),
                down=self._down,
                up=_total([remote.stats for remote in remotes], folded - began),
            )
        )
        return GlobalModel(round_number, path, digest)

    def dismiss(self, seconds: float) -> None:
        """Tell the sites that the run is over, and give their scripts ``seconds`` to end."""
        self._answers.say_goodbye(seconds)

    def _ask(
        self,
        kind: TaskKind,
        answer_type: type[AnswerT],
        model: GlobalModel,
        cohort: Sequence[str],
        round_number: int,
    ) -> tuple[dict[str, AnswerT], Transfer, float]:
        """Send a task to every site of a cohort.

        Returns:
            The answers in the sites' order, the cost of the model's way down, and the seconds
            from when the last site had it until the last one had answered.
        """
        self._answers.await_ready(cohort)
        source = FileSource(model.path)
        ref = self._service.offer(source, cohort)
        began = time.monotonic()
        for name in cohort:
            seed = site_seed(self._job.seed, name, round_number, kind)
            task = Task(kind, round_number, self._job.rounds, ref.token, seed)
            self._answers.send(name, task)
            self._emit(SiteState(round=round_number, site=name, state="downloading"))

        def report() -> None:
            down = {name: delivery.bytes for name, delivery in ref.deliveries.items()}
            self._emit(Progress(down=down, up={}, size=source.layout.nbytes))

        try:
            answers, received_at = self._answers.gather(
                answer_type, cohort, round_number, kind, report
            )
        finally:
            ref.abort(f"the {kind} task of round {round_number} is over")
        report()
        return answers, _down(ref, received_at - began), time.monotonic() - received_at

    def _open_updates(
        self, trained: Mapping[str, Trained], stack: ExitStack
    ) -> tuple[list[RemoteSource], list[Update], int]:
        """Open every site's update, and choose the step of the walk over them."""
        sizes = [self._settings(answer.framework).frame_size for answer in trained.values()]
        steps = plan_steps(min(sizes), self._job.aggregation.memory_budget)
        remotes, updates = [], []
        for name, answer in trained.items():
            settings = self._settings(answer.framework)
            if settings.chunk_size:
                settings = settings._replace(chunk_size=steps.frame)
            remote = RemoteSource(self._sites[name].up, answer.ref, settings)
            source: Source = remote
            if settings.chunk_size == 0:
                # As the old way does: every update whole, in the server's memory, until all of
                # them have been folded.
                source = BufferSource(remote.layout, remote.receive_whole())
            remotes.append(remote)
            updates.append(Update(name, source, answer.weight, answer.params_type))
        return remotes, updates, steps.step

    def _settings(self, framework: Framework) -> StreamSettings:
        return stream_settings(self._job, framework)

    def _watch_walk(
        self, trained: Mapping[str, Trained], base: FileSource
    ) -> Callable[[int], None]:
        reported = time.monotonic()

        def on_range(done: int) -> None:
            nonlocal reported
            if self._abort.is_set():
                raise AbortedError("the run was stopped")
            now = time.monotonic()
            if now - reported >= Answers.REPORT_SECONDS or done == base.layout.nbytes:
                reported = now
                up = dict.fromkeys(trained, done)
                self._emit(Progress(down={}, up=up, size=base.layout.nbytes))

        return on_range


def stream_settings(job: Job, framework: Framework) -> StreamSettings:
    """How models of tensors, or of arrays, are fetched in a job."""
    streaming = job.streaming
    chunk_size = {
        "pytorch": streaming.tensor_download_chunk_size,
        "numpy": streaming.np_download_chunk_size,
    }[framework]
    return StreamSettings(
        chunk_size=0 if streaming.mode == "native" else chunk_size,
        request_size=streaming.request_size,
        window=streaming.window,
        request_timeout=streaming.streaming_per_request_timeout,
    )


def weighted_metrics(answers: Sequence[Trained | Evaluation]) -> dict[str, float]:
    """The mean of each metric over the answers that have it, weighted as they are."""
    names = sorted({name for answer in answers for name in answer.metrics})
    means = {}
    for name in names:
        having = [answer for answer in answers if name in answer.metrics]
        total = sum(answer.weight for answer in having)
        means[name] = sum(answer.weight * answer.metrics[name] for answer in having) / total
    return means


def _down(ref: Ref, seconds: float) -> Transfer:
    deliveries = ref.deliveries.values()
    return Transfer(
        bytes=sum(delivery.bytes for delivery in deliveries),
        requests=sum(delivery.requests for delivery in deliveries),
        chunks=sum(delivery.chunks for delivery in deliveries),
        seconds=seconds,
    )


def _total(stats: Sequence[TransferStats], seconds: float) -> Transfer:
    return Transfer(
        bytes=sum(each.bytes for each in stats),
        requests=sum(each.requests for each in stats),
        chunks=sum(each.chunks for each in stats),
        retries=sum(each.retries for each in stats),
        seconds=seconds,
    )
