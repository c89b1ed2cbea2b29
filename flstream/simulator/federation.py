"""The federation of a simulated run: sites in processes on this machine, behind pipes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from flstream.aggregation.fold import Fold
from flstream.aggregation.walk import Update, fold_updates, plan_steps
from flstream.client.messages import Evaluation, Task, TaskKind, Trained
from flstream.errors import AbortedError, ChannelClosedError, SimulationError, StreamingError
from flstream.job import Job
from flstream.model.body import Source
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.memory import BufferSource, Framework
from flstream.simulator.answers import REPORT_SECONDS, Answers, AnswerT
from flstream.simulator.initial_model import BuildReport, NotBuilt
from flstream.simulator.run_directory import RunDirectory
from flstream.simulator.settings import stream_settings
from flstream.simulator.site import Site
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.refs import Ref
from flstream.streaming.remote import RemoteSource
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
    Warned,
)
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel
from flstream.workflows.federation import GlobalModel, Training
from flstream.workflows.sampling import site_seed

_TRAINS_TO_EVALUATE = (
    "the script answers evaluation tasks with a model too, so it may train where it need not; "
    "branch on is_evaluate(), or set workflow.args.evaluate_every = 0"
)

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
        builder: MessageChannel[BuildReport],
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
        self._warned = False
        self._answers = Answers(sites, emit, abort, job.clients.round_timeout)

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
            report = self._answers.await_report(self._builder)
        except ChannelClosedError as error:
            raise SimulationError(
                "the process that builds the initial model died; see model-builder.log"
            ) from error
        if isinstance(report, NotBuilt):
            raise SimulationError(report.reason)
        self._emit(ModelReady(bytes=report.bytes, tensors=report.tensors, digest=report.digest))
        return GlobalModel(0, self._run.checkpoint(0))

    def train(self, model: GlobalModel, cohort: Sequence[str]) -> Training:
        """Offer the model to the cohort and wait until every site has trained it."""
        self._answers.await_ready(cohort)
        self._emit(RoundStarted(round=model.round + 1, sites=list(cohort)))
        return Training(*self._ask("train", Trained, model, cohort, model.round + 1))

    def evaluate(self, model: GlobalModel, cohort: Sequence[str]) -> Mapping[str, float]:
        """Offer the model to the cohort and wait until every site has scored it."""
        self._answers.await_ready(cohort)
        answers, down, seconds = self._ask("evaluate", Evaluation, model, cohort, model.round)
        metrics = weighted_metrics(list(answers.values()))
        if not self._warned and any(answer.has_params for answer in answers.values()):
            self._warned = True
            self._emit(Warned(message=_TRAINS_TO_EVALUATE))
        self._emit(
            Evaluated(round=model.round, metrics=metrics, seconds=down.seconds + seconds, down=down)
        )
        return metrics

    def aggregate(self, model: GlobalModel, training: Training, fold: Fold) -> GlobalModel:
        """Walk over the updates where they lie, into the next checkpoint."""
        began = time.monotonic()
        check_weights(training.updates)
        base = FileSource(model.path)
        following = GlobalModel(model.round + 1, self._run.checkpoint(model.round + 1))
        metadata = {"format": "pt", "flstream.round": str(following.round)}
        with FileSink(following.path, base.layout, metadata) as sink:
            remotes, updates, step = self._open_updates(training.updates)
            progress = self._walk_progress(training.updates, base.layout.nbytes)
            digest = fold_updates(base, updates, fold, sink, step, progress)
            folded = time.monotonic()
            sink.finish()
        ended = time.monotonic()
        answers = training.updates
        up = sum((remote.cost for remote in remotes), start=Transfer())
        self._emit(
            RoundFinished(
                round=following.round,
                digest=digest,
                download=training.down.seconds,
                train=training.seconds,
                upload_and_fold=folded - began,
                checkpoint=ended - folded,
                weights={site: answer.weight for site, answer in answers.items()},
                metrics=weighted_metrics(list(answers.values())),
                down=training.down,
                up=msgspec.structs.replace(up, seconds=folded - began),
            )
        )
        # Only what is durable is settled: until now the sites still had all it takes to fold again.
        # One that has died since is noticed when it is asked again; its part of the round is done.
        for remote in remotes:
            with suppress(StreamingError):
                remote.close()
        return following

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
            answers, received_at, retries = self._answers.gather(
                answer_type, cohort, round_number, kind, report
            )
        finally:
            ref.abort(f"the {kind} task of round {round_number} is over")
        report()
        down = _cost(ref, retries, received_at - began)
        return answers, down, time.monotonic() - received_at

    def _open_updates(
        self, trained: Mapping[str, Trained]
    ) -> tuple[list[RemoteSource], list[Update], int]:
        """Open every site's update, and choose the step of the walk over them."""
        sizes = [self._settings(answer.framework).frame_size for answer in trained.values()]
        smallest = min(filter(None, sizes), default=0)  # 0 is that of a site that does not stream
        steps = plan_steps(smallest, self._job.aggregation.memory_budget)
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

    def _walk_progress(self, sites: Iterable[str], size: int) -> Callable[[int], None]:
        reported = time.monotonic()

        def on_range(done: int) -> None:
            nonlocal reported
            if self._abort.is_set():
                raise AbortedError("the run was stopped")
            now = time.monotonic()
            if now - reported >= REPORT_SECONDS or done == size:
                reported = now
                self._emit(Progress(down={}, up=dict.fromkeys(sites, done), size=size))

        return on_range


def check_weights(trained: Mapping[str, Trained]) -> None:
    """Refuse weights of which no mean can be made.

    Raises:
        SimulationError: one is not above 0, or their sum is not finite; the message names a site.
    """
    for site, answer in trained.items():
        if not (math.isfinite(answer.weight) and answer.weight > 0):
            raise SimulationError(f"{site} sent the weight {answer.weight}; it must be above 0")
    if not math.isfinite(sum(answer.weight for answer in trained.values())):
        largest = max(trained, key=lambda site: trained[site].weight)
        raise SimulationError(f"the weights add up to infinity; that of {largest} is the largest")


def weighted_metrics(answers: Sequence[Trained | Evaluation]) -> dict[str, float]:
    """The mean of each metric over the answers that have it, weighted as they are."""
    names = sorted({name for answer in answers for name in answer.metrics})
    means = {}
    for name in names:
        having = [answer for answer in answers if name in answer.metrics]
        total = sum(answer.weight for answer in having)
        means[name] = sum(answer.weight * answer.metrics[name] for answer in having) / total
    return means


def _cost(ref: Ref, retries: int, seconds: float) -> Transfer:
    deliveries = ref.deliveries.values()
    return Transfer(
        bytes=sum(delivery.bytes for delivery in deliveries),
        requests=sum(delivery.requests for delivery in deliveries),
        chunks=sum(delivery.chunks for delivery in deliveries),
        retries=retries,
        seconds=seconds,
    )
