"""The launcher: starts the processes of a run, follows its events, and ends all processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from msgspec import UNSET

from flstream.engines.engine import Engine
from flstream.engines.fork_server import host_for
from flstream.engines.processes import FORK_SERVER, ProcessHost
from flstream.engines.spawning import SpawnService
from flstream.errors import AbortedError, SimulationError, StreamingError, UsageError
from flstream.job import Job, JobError, render_job
from flstream.runs.history import History, Status, run_started
from flstream.runs.job_files import render_files
from flstream.runs.journal import read_history
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import MemorySummary, Summary, summarize
from flstream.runs.void_lines import VoidLines
from flstream.simulation.interruption import STOPS, handling
from flstream.simulation.own_code import own_code_problems
from flstream.simulation.workers import start_engine
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    NodeEvent,
    NodeJoined,
    NodeLost,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RunFinished,
    Snapshot,
    Warned,
)
from flstream.telemetry.machine import this_machine
from flstream.telemetry.memory import MemorySampler, ProcessMemory
from flstream.text import signal_name
from flstream.transport.channel import Signal
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel

# What only some runs need is imported where it is needed, and what runs in other processes is
# named, so that a run begins soon: with local processes, this one imports neither the server nor
# the client API.
if TYPE_CHECKING:
    from flstream.runs.resume import ResumePoint
    from flstream.simulation.tracker_process import TrackerProcess

LAUNCHER, BUILDER = "launcher", "model-builder"
_SERVER_PROCESS = "flstream.simulation.server_process:server_main"
_BUILDER_PROCESS = "flstream.simulation.model_builder:builder_main"

# Time for the server to stop in order, after which everything is killed.
_STOP_SECONDS = 3.0
# Time to wait for the exit status of a process whose death was seen on a socket first.
_EXPLAIN_SECONDS = 0.5
# Time for a worker's process to end after its last message.
_EXIT_SECONDS = 5.0

Listener = Callable[[AnyEvent, MemorySampler], None]


def simulate(
    job: Job,
    run: RunDirectory,
    listener: Listener | None = None,
    resume: ResumePoint | None = None,
    host: ProcessHost | None = None,
    on_round: Callable[[], None] | None = None,
) -> Summary:
    """Run a job in processes of its own, or in threads of this one (``engine.type = inline``).

    Ctrl-C, SIGTERM and SIGHUP stop the run: the last completed round is kept, and the status in
    the summary is ``stopped``.

    Args:
        job: The job.
        run: A new run directory, or that of the run to resume.
        listener: Function called with every event as it happens, and with the sampler of the
            processes' memory.
        resume: Point at which the run resumes; None for a new run.
        host: Process host that is prepared for the job (see
            :mod:`flstream.engines.fork_server`); None for a new one. It is closed at the end, but
            inline it is not touched.
        on_round: Function called at the end of each round, which must return at once.

    Returns:
        The content of ``summary.json``.

    Raises:
        UsageError: The engine cannot be used as the job asks for; nothing is left of the run.
    """
    began = time.monotonic()
    run.write(run.job_files, render_files(job))
    run.write(run.job_file, render_job(job))
    # A resumed run has the versions of its last sitting.
    run.write(run.versions, json.dumps(this_machine().in_words(), indent=2) + "\n")
    if resume is None:
        history, earlier_seconds = History(), 0.0
    else:
        from flstream.runs.resume import take_up

        history, earlier_seconds = take_up(job, run, resume), resume.seconds
    # The summary is written in any case, and Ctrl-C does not interrupt that.
    with closing(Signal()) as stop, handling(STOPS, lambda *_: stop.set()):
        with MemorySampler(run.memory) as sampler:
            is_inline = job.engine.is_inline
            follower = _Follower(history, run, sampler, listener, on_round, is_inline=is_inline)
            if is_inline:
                from flstream.simulation.inline import InlineHost

                host = InlineHost(job, stop, is_shown=listener is not None)
            host = host or host_for(job)
            try:
                with ExitStack() as stack:
                    stack.enter_context(host)
                    if problems := own_code_problems(job, host, stop):
                        raise JobError(f"the job {job.name}", problems)
                    engine, job = start_engine(job, run, host, sampler, follower.note_node, stop)
                    stack.enter_context(closing(engine))
                    spawn_service = stack.enter_context(closing(SpawnService(engine)))
                    follower.engine = engine
                    server = _start(job, run, host, sampler, resume, spawn_service)
                    if job.tracking.type is not None:
                        from flstream.simulation.tracker_process import TrackerProcess

                        tracker = TrackerProcess.start(job.tracking, job.name, run, host, sampler)
                        follower.tracker = stack.enter_context(closing(tracker))
                    status = follower.follow(server, stop, host)
                    spawn_service.close(_EXIT_SECONDS if status == "finished" else 0.0)
                    if status == "finished":
                        host.wait(_EXIT_SECONDS)
                    follower.explain(host, engine.causes)
            except UsageError:
                if resume is None:
                    run.withdraw()
                raise
            except SimulationError as error:
                follower.fail(str(error))
            except AbortedError:
                follower.stop()
            except (OSError, EOFError) as error:
                follower.fail(
                    f"the processes of the run could not be started: {error}; look for what ended "
                    f"them in {run.path}, and start the run again with --resume"
                )
        summary = follower.summary(job)
        summary.wall_seconds = earlier_seconds + time.monotonic() - began
        run.tidy()
        try:
            run.write(run.summary, summary.to_json())
        except SimulationError as error:
            # The run's own error matters more than this one, and most likely caused it.
            summary.warnings.append(str(error))
    return summary


def _start(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    sampler: MemorySampler,
    resume: ResumePoint | None,
    spawn_service: SpawnService,
) -> socket.socket:
    """Start the model builder and the server, which has the spawn service start the workers.

    Returns:
        The launcher's end of the socket for the server's events.
    """
    if not job.engine.is_inline:  # of which the server is a part
        sampler.watch(LAUNCHER, os.getpid())
    sampler.watch(FORK_SERVER, host.fork_server_pid() or 0)
    # A process sees a socket close only if no copy of the other end is open here. So all ends are
    # closed here in any case, and the one that is needed is kept as a duplicate.
    with ExitStack() as stack:
        pairs = socket.socketpair(), socket.socketpair()
        for end in (*pairs[0], *pairs[1]):
            stack.callback(end.close)
        (events, server_events), (builder_end, server_builder) = pairs
        # The builder first, since it has the most to do. The server then waits for it, and the
        # workers' imports overlap with both.
        sources = None
        if resume is None or resume.round is None:
            sampler.watch(BUILDER, host.start(BUILDER, _BUILDER_PROCESS, job, run, builder_end))
            sources = server_builder
        ends = spawn_service.theirs, sources, server_events
        sampler.watch(SERVER, host.start(SERVER, _SERVER_PROCESS, job, run, *ends, resume))
        spawn_service.begin()
        return events.dup()


def _hint(name: str, code: int) -> str:
    out_of_memory = name == BUILDER and code == -signal.SIGKILL
    return ": the machine may have too little memory for the model" if out_of_memory else ""


class _Follower:
    """Consumer of the server's events until the run ends.

    Args:
        history: History of the run so far.
        run: Its run directory.
        sampler: Sampler of the processes' memory.
        listener: Function called with every event; None for none.
        on_round: Function called at the end of each round; None for none.
        is_inline: Whether the whole run is in this process.

    Attributes:
        tracker: Process that is woken with every event; None for none.
        engine: Where the workers come from; None until it is there.
    """

    def __init__(
        self,
        history: History,
        run: RunDirectory,
        sampler: MemorySampler,
        listener: Listener | None,
        on_round: Callable[[], None] | None,
        *,
        is_inline: bool,
    ) -> None:
        self.tracker: TrackerProcess | None = None
        self.engine: Engine | None = None
        self._history = history
        self._voids, self._events = VoidLines(), 0
        self._journal = run.events
        self._node_warnings: list[str] = []
        self._causes: list[str] = []  # of a failure, such as which processes were killed
        self._showing = threading.Lock()
        self._sampler = sampler
        self._listener = listener
        self._on_round = on_round
        self._is_inline = is_inline

    def follow(self, server: socket.socket, stop: Signal, host: ProcessHost) -> Status:
        """Handle events until the run ends.

        Args:
            server: Socket with the server's events.
            stop: Signal to stop the run.
            host: Host of the run's processes.

        Returns:
            The status of the run.
        """
        channel: MessageChannel[AnyEvent] = MessageChannel(
            SocketChannel(server, "the server"), "the server", AnyEvent
        )
        try:
            while self._history.status == "running":
                host.attend(server.fileno())
                self._take(channel.receive(abort=stop))
        except AbortedError:
            self._stop(server, channel)
        except StreamingError:
            host.exit_code(SERVER, _EXPLAIN_SECONDS)
            self.fail("the server process died")
        finally:
            channel.close()
        if self.tracker is not None:
            for warning in self.tracker.finish():
                self._apply(Warned(message=warning))
        return self._history.status

    def summary(self, job: Job) -> Summary:
        """Return the summary of a job's run, all but its seconds."""
        if not self._history.facts.job:  # no server came as far as to say what the run is
            self._history.facts = run_started(job)
        summary, peaks = summarize(self._history), self._sampler.peaks()
        processes = self._history.facts.processes
        summary.memory = MemorySummary(
            peaks.get(SERVER, ProcessMemory()),
            {name: peaks[name] for name in processes if name in peaks},
            self._sampler.peak_total_pss,
            dict(self._sampler.nodes) or UNSET,
        )
        summary.warnings += self._node_warnings
        if self._causes:
            summary.error = f"{summary.error} ({', '.join(self._causes)})"
        return summary

    def fail(self, error: str) -> None:
        """Mark the run as failed with an error message, unless it has ended already."""
        if self._history.status == "running":
            self._take(RunFinished(status="failed", error=error))

    def stop(self) -> None:
        """Mark the run as stopped, unless it has ended already."""
        if self._history.status == "running":
            self._take(RunFinished(status="stopped", error="the run was stopped"))

    def note_node(self, event: NodeEvent) -> None:
        """Show an event of a node, and keep what is a warning; any thread may call this."""
        if isinstance(event, NodeLost):
            self._node_warnings.append(f"node {event.node}: {event.reason}")
        elif isinstance(event, NodeJoined) and event.other_processor:
            self._node_warnings.append(
                f"node {event.node} has another processor ({event.other_processor}), which may "
                "round otherwise"
            )
        self._show(event)

    def explain(self, host: ProcessHost, elsewhere: Mapping[str, str]) -> None:
        """Add what killed processes to the error of a failed run.

        Args:
            host: Host of this machine's processes.
            elsewhere: Why workers of other nodes have ended, by name.
        """
        if self._history.status != "failed":
            return
        host.wait_for_any(_EXPLAIN_SECONDS)
        for name in host.exit_codes():
            if f"{name} closed the channel" in self._history.error:
                host.exit_code(name, _EXPLAIN_SECONDS)
        killed = [
            f"{name} was killed by {signal_name(-code)}{_hint(name, code)}"
            for name, code in host.exit_codes().items()
            if code is not None and code < 0 and self._is_unexplained(name)
        ]
        killed += [why for name, why in elsewhere.items() if self._is_unexplained(name)]
        self._causes = killed

    def _is_unexplained(self, name: str) -> bool:
        # The server kills workers that it can no longer use, and its error has the reason.
        return name in (SERVER, BUILDER) or f"{name} closed the channel" in self._history.error

    def _stop(self, server: socket.socket, channel: MessageChannel[AnyEvent]) -> None:
        """Ask the server to stop, and handle the events that it still sends."""
        server.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _STOP_SECONDS
        try:
            while self._history.status == "running":
                self._take(channel.receive(timeout=max(deadline - time.monotonic(), 0.0)))
        except StreamingError:
            self.stop()

    def _apply(self, event: AnyEvent) -> None:
        self._events += 1
        if self._voids.apply(event, self._events, self._events + 1):
            # What counts of the events before is in the journal, which has this one already.
            self._history = read_history(self._journal, last=event)
        else:
            self._history.apply(event)

    def _take(self, event: AnyEvent) -> None:
        self._apply(event)
        if self.tracker is not None and not isinstance(event, Snapshot):
            self.tracker.wake()
        if isinstance(event, ProcessReady) and self._has_own_memory(event.process):
            self._sampler.note(event.process, idle_rss=event.idle_rss)
            if event.others and self.engine is not None:
                self.engine.watch(event.process, event.pid, event.others)
        elif isinstance(event, ProcessEnded) and self._has_own_memory(event.process):
            self._sampler.note(event.process, peak_rss=event.peak_rss)
        if self._on_round is not None and isinstance(event, RoundFinished):
            self._on_round()
        self._show(event)

    def _has_own_memory(self, process: str) -> bool:
        """Whether the memory of a process is told apart from that of the server."""
        return process == SERVER or not self._is_inline

    def _show(self, event: AnyEvent) -> None:
        with self._showing:
            if self._listener is not None:
                try:
                    self._listener(event, self._sampler)
                except OSError:
                    self._listener = None  # its terminal is gone, which does not concern the run
