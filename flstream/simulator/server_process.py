"""The server's process: it runs the workflow, and tells the launcher what happens."""

from __future__ import annotations

import os
import select
import signal
import socket
import traceback
from contextlib import closing, suppress

from flstream.errors import AbortedError, ChannelClosedError, FlstreamError, SimulationError
from flstream.job import Job
from flstream.simulator.child import redirect_output
from flstream.simulator.crew.crew import Crew
from flstream.simulator.crew.hiring import Hiring
from flstream.simulator.files.resume import ResumePoint
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.initial_model import BuildReport
from flstream.simulator.rounds.federation import LocalFederation
from flstream.simulator.rounds.settings import stream_settings
from flstream.streaming.service import DownloadService
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    Evaluated,
    ProcessEnded,
    ProcessReady,
    Progress,
    RoundFinished,
    RunFinished,
    RunStarted,
)
from flstream.telemetry.memory import own_peak_rss, own_rss
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel
from flstream.workflows.fedavg import fedavg

WORKFLOWS = {"fedavg": fedavg}

# How long training code may go on after the last round, to save or to print.
_GOODBYE_SECONDS = 30.0


class StopRequest:
    """The launcher wants the run to stop, or is gone: it then closes its way to the server."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher

    def fileno(self) -> int:
        """The descriptor of the launcher's socket, which the launcher never writes to."""
        return self._launcher.fileno()

    def is_set(self) -> bool:
        """Whether the launcher has closed its way. Any thread may ask."""
        poll = select.poll()
        poll.register(self._launcher, select.POLLIN)
        return bool(poll.poll(0))


class Reporter:
    """Writes events to the run directory, and tells the launcher of them.

    Args:
        log: keeps them.
        launcher: shows them.
    """

    def __init__(self, log: EventLog, launcher: MessageChannel[AnyEvent]) -> None:
        self._log = log
        self._launcher = launcher

    def emit(self, event: AnyEvent) -> None:
        """Report one event.

        Raises:
            AbortedError: the launcher is gone, so the run is to stop.
        """
        if not isinstance(event, Progress):
            # What a run goes on from has to be there after a power cut, too.
            self._log.write(event, durable=isinstance(event, RoundFinished | Evaluated))
        try:
            self._launcher.send(event, timeout=None)
        except ChannelClosedError as error:
            raise AbortedError("the launcher is gone") from error

    def emit_last(self, event: AnyEvent) -> None:
        """Report how it ended, to whoever can still be told: the disk may be full."""
        with suppress(SimulationError):
            self._log.write(event)
        with suppress(ChannelClosedError):
            self._launcher.send(event, timeout=None)


def server_main(
    job: Job,
    run: RunDirectory,
    recruiter: socket.socket,
    builder: socket.socket | None,
    launcher: socket.socket,
    resume: ResumePoint | None,
) -> None:
    """The process: run the job to its end, however it ends.

    What a round is stands in the workflow, such as :mod:`flstream.workflows.fedavg`.

    Args:
        job: the job.
        run: its run directory.
        recruiter: where workers are asked for.
        builder: where the builder process reports; None if the run goes on from a model.
        launcher: where events go; the launcher closes its way here to stop the run.
        resume: where the run goes on; None if it begins.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(run.log(SERVER))
    abort = StopRequest(launcher)
    channel: MessageChannel[AnyEvent] = MessageChannel(
        PipeChannel(launcher, "the launcher"), "the launcher", AnyEvent
    )
    with EventLog(run.events) as log:
        reporter = Reporter(log, channel)
        outcome = _run(job, run, Hiring(recruiter), builder, reporter, abort, resume)
        for event in (ProcessEnded(process=SERVER, peak_rss=own_peak_rss()), outcome):
            reporter.emit_last(event)


def _run(
    job: Job,
    run: RunDirectory,
    hiring: Hiring,
    builder: socket.socket | None,
    reporter: Reporter,
    abort: StopRequest,
    resume: ResumePoint | None,
) -> RunFinished:
    try:
        reporter.emit(ProcessReady(process=SERVER, pid=os.getpid(), idle_rss=own_rss()))
        reporter.emit(_run_started(job))
        names, seconds = job.clients.worker_names, job.clients.round_timeout
        own = len(names) == job.clients.count
        with (
            DownloadService() as service,
            closing(Crew(names, own, hiring, service, abort, seconds)) as crew,
        ):
            reports: MessageChannel[BuildReport] | None = None
            if builder is not None:
                reports = MessageChannel(
                    PipeChannel(builder, "the builder"), "the builder", BuildReport
                )
            federation = LocalFederation(
                job, run, crew, service, reports, reporter.emit, abort, resume
            )
            model = WORKFLOWS[job.workflow.type](federation, job)
            run.publish_final_model(model.round)
            federation.dismiss(_GOODBYE_SECONDS)
    except AbortedError as error:
        return RunFinished(status="stopped", error=str(error))
    except FlstreamError as error:
        return RunFinished(status="failed", error=str(error))
    except Exception as error:
        # Not one of ours, so a defect: the user gets a sentence, and the log the whole of it.
        traceback.print_exc()
        said = f"the server met a defect, {type(error).__name__}: {error}; see server.log"
        return RunFinished(status="failed", error=said)
    return RunFinished(status="finished")


def _run_started(job: Job) -> RunStarted:
    settings = stream_settings(job, job.train.exchange_format)
    clients = job.clients
    return RunStarted(
        job=job.name,
        seed=job.seed,
        rounds=job.rounds,
        clients=clients.count,
        mode="native" if settings.chunk_size == 0 else job.streaming.mode,
        chunk_size=settings.chunk_size,
        workers=clients.worker_names if clients.workers < clients.count else [],
    )
