"""The launcher: starts the processes of a run, follows its events, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from flstream.client.code import train_code
from flstream.client.worker_info import WorkerInfo
from flstream.errors import AbortedError, SimulationError, StreamingError
from flstream.job import Job, render_job
from flstream.simulator.crew.hiring import Recruiter
from flstream.simulator.crew.links import LinkEnd
from flstream.simulator.files.resume import ResumePoint, take_up
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.files.summary import Status, Summary, Tally
from flstream.simulator.host import host_for
from flstream.simulator.initial_model import builder_main
from flstream.simulator.interruption import STOPS, handling
from flstream.simulator.processes import ProcessHost
from flstream.simulator.rounds.settings import stream_settings
from flstream.simulator.server_process import server_main
from flstream.simulator.worker_process import worker_main
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    ProcessEnded,
    ProcessReady,
    RunFinished,
)
from flstream.telemetry.machine import this_machine
from flstream.telemetry.memory import MemorySampler
from flstream.transport.channel import Signal
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel

LAUNCHER, FORK_SERVER, BUILDER = "launcher", "fork-server", "model-builder"

# How long the server may take to stop in order before everything is killed.
_STOP_SECONDS = 3.0
# A failure that is the death of a process is often seen on a pipe before it can be waited for.
_EXPLAIN_SECONDS = 0.5
# How long a site's process may take to end after it has said goodbye.
_EXIT_SECONDS = 5.0

Listener = Callable[[AnyEvent, MemorySampler], None]


def simulate(
    job: Job,
    run: RunDirectory,
    listener: Listener | None = None,
    resume: ResumePoint | None = None,
    host: ProcessHost | None = None,
) -> Summary:
    """Run a job in processes of its own.

    Ctrl-C, SIGTERM or the terminal's closing stops the run: the last completed round is kept, and
    the summary says ``stopped``.

    Args:
        job: the job.
        run: a new run directory, to be filled; or that of the run that goes on.
        listener: called with every event as it happens, and with the sampler that knows the
            memory of every process.
        resume: where the run goes on; None if it begins.
        host: what its processes start from, if there is one already, made ready for the job: see
            :mod:`flstream.simulator.host`. It is closed in the end.

    Returns:
        What is in ``summary.json``.
    """
    began = time.monotonic()
    run.write(run.job_file, render_job(job))
    # Of a run that goes on, it is the last sitting's.
    run.write(run.versions, json.dumps(this_machine().in_words(), indent=2) + "\n")
    tally = Tally(job) if resume is None else take_up(job, run, resume)
    host = host or host_for(job)
    # The summary is written whatever happens, and no Ctrl-C comes between.
    with closing(Signal()) as stop, handling(STOPS, lambda *_: stop.set()):
        with MemorySampler(run.memory) as sampler:
            follower = _Follower(tally, sampler, listener)
            try:
                with host, closing(_recruiter(job, run, host, sampler)) as recruiter:
                    server = _start(job, run, host, sampler, resume, recruiter)
                    status = follower.follow(server, stop, host)
                    recruiter.close()
                    if status == "finished":
                        host.wait(_EXIT_SECONDS)
                    follower.explain(host)
            except (OSError, EOFError) as error:
                follower.fail(f"the processes of the run could not be started: {error}")
        summary = tally.close(sampler.peaks(), sampler.peak_total_pss, time.monotonic() - began)
        run.tidy()
        try:
            run.write(run.summary, summary.to_json())
        except SimulationError as error:
            # What ended the run is more than this, and most likely the cause of it.
            summary.warnings.append(str(error))
    return summary


def _start(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    sampler: MemorySampler,
    resume: ResumePoint | None,
    recruiter: Recruiter,
) -> socket.socket:
    """Start the builder and the server, and return this end of the server's events.

    The server has the recruiter start the workers.
    """
    sampler.watch(LAUNCHER, os.getpid())
    sampler.watch(FORK_SERVER, host.fork_server_pid() or 0)

    def start(name: str, target: Callable[..., None], *args: Any) -> None:
        sampler.watch(name, host.start(name, target, *args))

    # A pipe whose other end stays open here would never be seen to close by those who hold it. So
    # all of them are closed here in the end, however this goes, and one is kept as a duplicate.
    with ExitStack() as stack:
        pairs = socket.socketpair(), socket.socketpair()
        for end in (*pairs[0], *pairs[1]):
            stack.callback(end.close)
        (events, server_events), (builder_end, server_builder) = pairs
        # The builder first: it has the most to do. The server then waits for it, and the workers'
        # imports overlap with both.
        builds = resume is None or resume.round is None
        if builds:
            start(BUILDER, builder_main, job.model, job.seed, run, builder_end)
        sources = server_builder if builds else None
        start(SERVER, server_main, job, run, recruiter.theirs, sources, server_events, resume)
        recruiter.begin()
        return events.dup()


def _recruiter(job: Job, run: RunDirectory, host: ProcessHost, sampler: MemorySampler) -> Recruiter:
    """What starts workers for the server."""
    code, threads = train_code(job.train), job.clients.threads

    def start(name: str, end: LinkEnd) -> int:
        pid = host.start(name, worker_main, _worker_info(job, run, name), run, code, threads, end)
        sampler.watch(name, pid)
        return pid

    return Recruiter(start)


def _worker_info(job: Job, run: RunDirectory, name: str) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        site=name if job.clients.workers == job.clients.count else None,
        job=job.name,
        clients=job.clients.count,
        rounds=job.rounds,
        seed=job.seed,
        sites_folder=str(run.sites),
        exchange_format=job.train.exchange_format,
        streaming=stream_settings(job, job.train.exchange_format),
        include=job.aggregation.include,
        exclude=job.aggregation.exclude,
    )


def _hint(name: str, code: int) -> str:
    out_of_memory = name == BUILDER and code == -signal.SIGKILL
    return ": the machine may have too little memory for the model" if out_of_memory else ""


class _Follower:
    """Follows the server's events until there are no more."""

    def __init__(self, tally: Tally, sampler: MemorySampler, listener: Listener | None) -> None:
        self._tally = tally
        self._sampler = sampler
        self._listener = listener

    def follow(self, server: socket.socket, stop: Signal, host: ProcessHost) -> Status:
        """Take every event in until ``stop``, and return the status with which the run ended."""
        channel: MessageChannel[AnyEvent] = MessageChannel(
            PipeChannel(server, "the server"), "the server", AnyEvent
        )
        try:
            while self._tally.summary.status == "running":
                self._take(channel.receive(abort=stop))
        except AbortedError:
            self._stop(server, channel)
        except StreamingError:
            host.wait_for(SERVER, _EXPLAIN_SECONDS)
            self.fail("the server process died")
        finally:
            channel.close()
        return self._tally.summary.status

    def fail(self, error: str) -> None:
        """End the run as failed, if it has not ended yet."""
        if self._tally.summary.status == "running":
            self._take(RunFinished(status="failed", error=error))

    def explain(self, host: ProcessHost) -> None:
        """Add to a failure how the processes ended that did not end well."""
        summary = self._tally.summary
        if summary.status != "failed":
            return
        host.wait_for_any(_EXPLAIN_SECONDS)
        for name in host.exit_codes():
            if f"{name} closed the channel" in str(summary.error):
                host.wait_for(name, _EXPLAIN_SECONDS)
        killed = [
            f"{name} was killed by {signal.Signals(-code).name}{_hint(name, code)}"
            for name, code in host.exit_codes().items()
            if code is not None and code < 0 and self._is_unexplained(name)
        ]
        if killed:
            summary.error = f"{summary.error} ({', '.join(killed)})"

    def _is_unexplained(self, name: str) -> bool:
        # The server itself ends workers that it can no longer use, and says why.
        return name in (SERVER, BUILDER) or f"{name} closed the channel" in str(
            self._tally.summary.error
        )

    def _stop(self, server: socket.socket, channel: MessageChannel[AnyEvent]) -> None:
        """Ask the server to stop, and give it a moment to say how far it came."""
        server.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _STOP_SECONDS
        try:
            while self._tally.summary.status == "running":
                self._take(channel.receive(timeout=max(deadline - time.monotonic(), 0.0)))
        except StreamingError:
            self._take(RunFinished(status="stopped", error="the run was stopped"))

    def _take(self, event: AnyEvent) -> None:
        self._tally.apply(event)
        if isinstance(event, ProcessReady):
            self._sampler.note(event.process, idle_rss=event.idle_rss)
        elif isinstance(event, ProcessEnded):
            self._sampler.note(event.process, peak_rss=event.peak_rss)
        if self._listener is not None:
            try:
                self._listener(event, self._sampler)
            except OSError:
                self._listener = None  # its terminal is gone; the run goes on, or stops in order
