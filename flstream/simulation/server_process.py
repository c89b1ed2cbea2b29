"""The server's process: owns the workers, runs the workflow, sends events."""

from __future__ import annotations

import errno
import os
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from flstream.aggregation.rules import rule_for
from flstream.engines.child_process import EndedProcessError, ProcessCall
from flstream.engines.engine import Engine
from flstream.engines.local import LocalEngine
from flstream.engines.preload import expect_no_threads
from flstream.engines.processes import FORK_SERVER, ProcessHost
from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    FlstreamError,
    ResumeRefusedError,
    SimulationError,
    UsageError,
)
from flstream.job import Job
from flstream.job.aggregation_section import is_own
from flstream.runs.history import run_started
from flstream.runs.run_directory import RunDirectory
from flstream.server.context import ServerContext
from flstream.server.live_picture import LivePicture
from flstream.server.play import play, prepare
from flstream.server.worker_handle import WorkerHandle
from flstream.server.worker_pool import WorkerPool
from flstream.simulation.child import ignore_interrupts, redirect_output
from flstream.simulation.dry_run import outline_programs
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import RUN_LIMITS
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    EVALUATOR,
    SERVER,
    UNSYNCED,
    AnyEvent,
    BaseReady,
    EffectDone,
    Emit,
    LiveEvent,
    ModelReady,
    ProcessEnded,
    ProcessReady,
    ProcessStarted,
    RunFinished,
    RunRefused,
)
from flstream.telemetry.memory import own_peak_rss, own_rss
from flstream.transport.channel import AbortSignal, is_hung_up
from flstream.transport.messages import MessageChannel

if TYPE_CHECKING:
    from flstream.runs.resume import ResumePoint

_WORKER = "flstream.simulation.worker_process:local_worker"
# They import what a factory may need, which the server does without.
_MODEL_BUILDER = "flstream.simulation.model_builder:build_model"
_BASE_BUILDER = "flstream.simulation.base_builder:built_here"

_TOO_MANY_FILES = (
    "the server may not open as many files as it has workers for; raise the limit (ulimit -n), or "
    "set clients.parallel to fewer workers"
)

# In the encoding of the channel to the launcher, which is not that of the journal.
_NO_RESULT = msgspec.Raw(msgspec.msgpack.encode(None))

# How long training code may go on after the last round, to save or to print.
_GOODBYE_SECONDS = 30.0
# Time for a worker's process to end after its last message.
_EXIT_SECONDS = 5.0


# Records that wait for a later one at most.
_MOST_WAITING = 256


class StopRequest:
    """Request of the launcher to stop: it closes its way to the server, or is gone."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher

    def fileno(self) -> int:
        """The descriptor of the launcher's socket, which the launcher never writes to."""
        return self._launcher.fileno()

    def set(self) -> None:
        """Stop the run from this process. Any thread may do so."""
        with suppress(OSError):  # the launcher is gone
            self._launcher.shutdown(socket.SHUT_RD)

    def is_set(self) -> bool:
        """Return whether the launcher has closed its way. Any thread may ask."""
        return is_hung_up(self._launcher)


class EventWriter:
    """Writer of events to the run directory and to the launcher.

    Args:
        log: The journal.
        launcher: Channel to the launcher.
        groups: Whether records that need no sync wait for later events, up to 256 of them.

    Attributes:
        watch: Function that is called with processes that a worker has started: see ``Engine``.
    """

    def __init__(
        self, log: EventLog, launcher: MessageChannel[AnyEvent], *, groups: bool = False
    ) -> None:
        self.watch: Callable[[str, int, Sequence[int]], None] = lambda *_: None
        self._log = log
        self._launcher = launcher
        self._groups = groups
        self._turn = threading.Lock()
        self._waiting: list[AnyEvent] = []

    def emit(self, *events: AnyEvent) -> None:
        """Report events, in order; many at once take little more time than one.

        Any thread may do so.
        """
        for event in events:
            if isinstance(event, ProcessReady) and event.others:
                self.watch(event.process, event.pid, event.others)
        with self._turn:
            self._waiting += events
            is_full = len(self._waiting) >= _MOST_WAITING
            if self._groups and not is_full and all(map(_is_unsynced, events)):
                return
            reported, self._waiting = self._waiting, []
            recorded = [event for event in reported if not isinstance(event, LiveEvent)]
            if recorded:
                self._log.write(*recorded, durable=any(map(_is_synced, recorded)))
            try:
                for_launcher = [
                    _for_launcher(event) for event in reported if not _is_unsynced(event)
                ]
                self._launcher.send(*for_launcher, timeout=None)
            except ChannelClosedError as error:
                raise AbortedError("the launcher is gone") from error

    def emit_last(self, event: AnyEvent) -> None:
        """Report the run's end even if the disk is full or the launcher is gone."""
        with suppress(SimulationError):
            self._log.write(event)
        with suppress(ChannelClosedError):
            self._launcher.send(_for_launcher(event), timeout=None)


def server_main(
    job: Job,
    run: RunDirectory,
    launcher: socket.socket,
    resume: ResumePoint | None,
    inline_host: ProcessHost | None = None,
) -> None:
    """Run the job to its end, in the server's process.

    The launcher closes its way of the socket to stop the run. ``resume`` is None for a new run, and
    ``inline_host`` starts threads in place of the other processes.
    """
    ignore_interrupts()
    redirect_output(run.log(SERVER))
    host = inline_host or ProcessHost.forked(launcher)
    abort = StopRequest(launcher)
    channel: MessageChannel[AnyEvent] = MessageChannel(launcher, "the launcher", AnyEvent)
    with ExitStack() as stack:
        if inline_host is None:  # which is the launcher's otherwise
            stack.enter_context(closing(host))
        log = stack.enter_context(EventLog(run.events))
        # By the virtual clock, what is lost is done again just as it was.
        writer = EventWriter(log, channel, groups=job.time.is_virtual)
        outcome = _run(job, run, host, writer, abort, resume)
        if isinstance(outcome, RunRefused):  # of which nothing is left
            writer.emit(outcome)
            return
        for event in (ProcessEnded(process=SERVER, peak_rss=own_peak_rss()), outcome):
            writer.emit_last(event)


def _run(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    writer: EventWriter,
    abort: StopRequest,
    resume: ResumePoint | None,
) -> RunFinished | RunRefused:
    engine: Engine | None = None
    try:
        idle_rss = own_rss()
        expect_no_threads()

        def note_started(name: str, pid: int) -> None:
            writer.emit(ProcessStarted(process=name, pid=pid))

        host.on_started = note_started
        with ExitStack() as stack:
            try:
                programs = outline_programs(job)
                if job.base is not None:
                    before = None if resume is None else resume.base
                    base = _build_base(job, run, host, abort, before)
                    job = job.with_base(base.digest)
                    if before is None:
                        writer.emit(base)
                engine, job = _engine(job, run, host, writer.emit, abort)
            except UsageError as error:
                return RunRefused(error=str(error))
            writer.watch = engine.watch
            stack.enter_context(closing(engine))
            if host.fork_server_pid is not None:  # inline, there is none
                note_started(FORK_SERVER, host.fork_server_pid)
            writer.emit(ProcessReady(process=SERVER, pid=os.getpid(), idle_rss=idle_rss))
            builder = None
            if resume is None or resume.round is None:
                # First, since it has the most to do; the workers' imports overlap with it.
                name, call = "model-builder", (_MODEL_BUILDER, job, run)
                log = run.log(name)
                builder = ProcessCall[ModelReady](
                    host, name, ModelReady, *call, log=log, abort=abort
                )
                stack.enter_context(closing(builder))
            writer.emit(run_started(job))
            service = stack.enter_context(DownloadService(limits=RUN_LIMITS))
            connect = partial(
                WorkerHandle,
                service=service,
                abort=abort,
                emit=writer.emit,
                is_linked=job.paces_links,
                is_direct=job.is_direct,
                has_deadlines=not job.engine.is_inline,
            )
            names, start = job.clients.worker_names, engine.start
            pool = WorkerPool(
                names,
                not job.clients.share_workers,
                lambda name: connect(name, start(name)),
                abort,
                job.clients.round_timeout,
                writer.emit,
                gives_again=job.time.is_virtual,
            )
            stack.enter_context(closing(pool))
            stack.callback(engine.close)  # before the pool, which waits for starts under way
            rule = rule_for(job.aggregation)
            if is_own(rule.method) and job.train.alias is not None:
                from flstream.worker.user_code import install_alias

                install_alias(job)  # its class may be derived from one of theirs
            context = ServerContext(
                job,
                run,
                pool,
                service,
                rule,
                writer.emit,
                abort,
                LivePicture(writer.emit),
                programs,
                host=host,
            )
            if job.is_scored_centrally:
                own = _evaluators_pool(job, run, host, connect, abort, writer.emit)
                stack.enter_context(closing(own))
                evaluator = replace(context, job=job.of_evaluator(), pool=own)
                context = replace(context, evaluator=evaluator)
            prepare(context)
            initial, records = (resume.initial, resume.records) if resume else (None, ())
            order = resume.order if resume else ""
            if builder is not None:
                try:
                    built = builder.result()
                except EndedProcessError as error:
                    raise SimulationError(
                        f"the process that builds the initial model {error.how}; see "
                        "model-builder.log"
                    ) from None
                writer.emit(built)
                initial, order = built.digest, built.order
            assert initial is not None
            play(context, initial, records, order=order, is_built=builder is not None)
            pool.dismiss(_GOODBYE_SECONDS)
            if context.evaluator is not None:
                context.evaluator.pool.dismiss(_GOODBYE_SECONDS)
            engine.close(_EXIT_SECONDS)
    except FlstreamError as error:
        if engine is not None and engine.failure:  # whatever has come of it
            return RunFinished(status="failed", error=engine.failure)
        if isinstance(error, ResumeRefusedError) and resume is not None:
            return RunRefused(error=str(error))
        if isinstance(error, AbortedError):
            # Any transfer may have raised it, though the run is what has stopped.
            return RunFinished(status="stopped", error="the run was stopped")
        return RunFinished(status="failed", error=str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            return RunFinished(status="failed", error=_TOO_MANY_FILES)
        # Not one of ours, so a defect: the user gets a sentence, and the log the whole of it.
        traceback.print_exc()
        message = f"the server met a defect, {type(error).__name__}: {error}; see server.log"
        return RunFinished(status="failed", error=message)
    return RunFinished(status="finished")


def _build_base(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    abort: AbortSignal,
    before: str | None,
) -> BaseReady:
    """Build a job's base in a process, unless its file is there.

    ``before`` is the digest of the base that the run has begun with; None for a new run. Another
    one is refused.
    """
    name, log = "base-builder", run.log("base-builder")
    call = ProcessCall[BaseReady](host, name, BaseReady, _BASE_BUILDER, job, log=log, abort=abort)
    try:
        base = call.result()
    except EndedProcessError as error:
        raise SimulationError(
            f"the process that builds the base (model.base) {error.how}; see {log.name}"
        ) from None
    if before is not None and before != base.digest:
        raise ResumeRefusedError(
            f"the run in {run.path} has trained on the base {before[:12]}, and model.base is "
            f"{base.digest[:12]} now; put back its files, code and versions of libraries, or "
            "leave out --resume to start a new run"
        )
    return base


def _engine(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    emit: Emit,
    stop: AbortSignal,
) -> tuple[Engine, Job]:
    """Create a job's engine; return it, and the job with as many workers as fit."""
    if job.engine.is_local:
        gpus = None
        if job.engine.gpus is not None:
            from flstream.engines.gpus import GpuDealer, visible_gpus

            gpus = GpuDealer(visible_gpus(), job.engine.gpus)
            job = job if gpus.room is None else _fitted(job, gpus.room)
        return LocalEngine(host, _WORKER, (job, run), gpus), job
    from flstream.engines.ray import RayEngine

    engine = RayEngine(job, run, host, emit, stop)
    try:
        engine.job = _fitted(job, engine.room)
    except BaseException:
        engine.close()
        raise
    return engine, engine.job


def _evaluators_pool(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    connect: Callable[..., WorkerHandle],
    abort: AbortSignal,
    emit: Emit,
) -> WorkerPool:
    """Create the pool of the evaluator alone, which runs on this machine, whatever the engine."""
    engine = LocalEngine(host, _WORKER, (job, run))

    def start(name: str) -> WorkerHandle:
        return connect(name, engine.start(name), is_linked=False)

    return WorkerPool([EVALUATOR], True, start, abort, job.clients.round_timeout, emit)


def _fitted(job: Job, room: int) -> Job:
    """Return a job with as many workers as fit, where it does not give a number."""
    clients = job.clients
    if clients.parallel is None and job.train.command is None:
        clients = clients.model_copy(update={"parallel": max(min(room, clients.count), 1)})
        job = job.model_copy(update={"clients": clients})
    if job.engine.gpus and clients.workers > room:
        raise UsageError(
            f"there are GPUs for {room} workers of {job.engine.gpus} (engine.gpus), and the job "
            f"has {clients.workers}; set clients.parallel to {room} at most"
        )
    return job


def _for_launcher(event: AnyEvent) -> AnyEvent:
    """Return an event without an effect's result, which only the journal keeps."""
    if isinstance(event, EffectDone):
        return msgspec.structs.replace(event, result=_NO_RESULT)
    return event


def _is_unsynced(event: AnyEvent) -> bool:
    """Return whether an event is of an effect that makes no model, which only the journal keeps."""
    return isinstance(event, EffectDone) and event.name in UNSYNCED


def _is_synced(event: AnyEvent) -> bool:
    """Return whether a run may resume from an event, which has to survive a power cut."""
    return isinstance(event, EffectDone | ModelReady) and not _is_unsynced(event)
