"""The launcher: starts a run's server, follows its events, ends all processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET

from flstream.engines.processes import FORK_SERVER, Process, ProcessHost
from flstream.errors import AbortedError, SimulationError, StreamingError, UsageError
from flstream.job import Job, JobError, render_job
from flstream.job.keys import leaves
from flstream.job.values import render_value
from flstream.runs.history import History, run_started
from flstream.runs.job_match import render_files
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import MemorySummary, Summary, summarize
from flstream.simulation.interruption import handling
from flstream.simulation.own_code import own_code_problems
from flstream.telemetry.events import (
    EVALUATOR,
    SERVER,
    AnyEvent,
    LiveEvent,
    NodeJoined,
    NodeLost,
    NodeMeasured,
    ProcessEnded,
    ProcessReady,
    ProcessStarted,
    RunFinished,
    RunRefused,
    Warned,
)
from flstream.telemetry.machine import machine_facts
from flstream.telemetry.memory import MemorySampler, ProcessMemory
from flstream.telemetry.memory_group import LimitKills
from flstream.text import how_ended
from flstream.transport.channel import Signal
from flstream.transport.messages import MessageChannel

# What only some runs need is imported where it is needed, and what runs in other processes is
# named, so that a run begins soon: with local processes, this one imports neither the server nor
# the client API.
if TYPE_CHECKING:
    from flstream.runs.resume import ResumePoint
    from flstream.telemetry.memory_group import MemoryGroup
    from flstream.tracking.feed import TrackerThread

LAUNCHER = "launcher"
_SERVER_PROCESS = "flstream.simulation.server_process:server_main"
_TRACKER_THREAD = "flstream.tracking.feed:TrackerThread.run"
_STOPPED = "the run was stopped"

# Time for the server to stop in order, after which everything is killed.
_STOP_SECONDS = 3.0
# Time for the server's process to end after its last event, or the end of its socket.
_EXIT_SECONDS = 5.0

Listener = Callable[[AnyEvent, MemorySampler], None]


def simulate(
    job: Job,
    run: RunDirectory,
    listener: Listener | None = None,
    resume: ResumePoint | None = None,
    host: ProcessHost | None = None,
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
        host: Process host that is prepared for the job; None for a new one. It is closed at the
            end, but inline it is not touched.

    Returns:
        The content of ``summary.json``.

    Raises:
        UsageError: The engine cannot be used as the job asks for; nothing is left of the run.
    """
    began = time.monotonic()
    run.write(run.job_files, render_files(job))
    run.write(run.job_file, render_job(job))
    # A resumed run has the versions of its last sitting.
    run.write(run.versions, json.dumps(machine_facts(), indent=2) + "\n")
    if resume is None:
        history, earlier_seconds = History(), 0.0
    else:
        from flstream.runs.resume import take_up

        history, earlier_seconds = take_up(job, run, resume), resume.seconds
    refused: UsageError | None = None
    # The summary is written in any case, and Ctrl-C does not interrupt that.
    with closing(Signal()) as stop, handling(lambda *_: stop.set()):
        with MemorySampler(run.memory) as sampler:
            is_inline = job.engine.is_inline
            follower = _Follower(history, sampler, listener, is_inline=is_inline)
            if is_inline:
                from flstream.simulation.inline import InlineHost

                host = InlineHost(job, stop, is_shown=listener is not None)
            host = host or ProcessHost.of(job)
            try:
                with ExitStack() as stack:
                    if job.memory_limit is not None:
                        from flstream.telemetry.memory_limit import limited

                        group = stack.enter_context(limited(job.memory_limit))
                        assert group is not None
                        follower.limit(group)
                    stack.enter_context(host)
                    if problems := own_code_problems(job, host, stop):
                        raise JobError(f"the job {job.name}", problems)
                    events, theirs = socket.socketpair()
                    stack.enter_context(events)
                    # Inline, the server has the launcher's host, as it is a thread of it.
                    own = (host,) if is_inline else ()
                    # The socket shows the server's end only if no copy of `theirs` is open here.
                    with theirs:
                        server = host.start(SERVER, _SERVER_PROCESS, job, run, theirs, resume, *own)
                    if not is_inline:  # of which the server is a part
                        sampler.watch(LAUNCHER, os.getpid())
                        sampler.watch(f"{LAUNCHER}/{FORK_SERVER}", host.fork_server_pid or 0)
                    sampler.watch(SERVER, server.pid)
                    if job.tracking.type is not None:
                        from flstream.tracking.feed import TrackerThread

                        tracker = TrackerThread(job.tracking, job.name, run)
                        follower.tracker = stack.enter_context(closing(tracker))
                        if is_inline:  # whose threads take turns
                            host.start(tracker.name, _TRACKER_THREAD, tracker)
                        else:
                            tracker.start()
                    follower.follow(server, events, stop, host)
                    host.wait(_EXIT_SECONDS)
            except UsageError as error:
                if resume is None:
                    run.withdraw()
                    raise
                refused = error
                follower.end(str(error))
            except SimulationError as error:
                follower.end(str(error))
            except AbortedError:
                follower.end(_STOPPED, "stopped")
            except OSError as error:
                follower.end(
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
    if refused is not None:
        raise refused
    return summary


class _Follower:
    """Consumer of the server's events, which wakes the tracker: see :func:`simulate`."""

    def __init__(
        self,
        history: History,
        sampler: MemorySampler,
        listener: Listener | None,
        *,
        is_inline: bool,
    ) -> None:
        self.tracker: TrackerThread | None = None
        self._group: MemoryGroup | None = None
        self._kills: LimitKills | None = None
        self._history = history
        self._sampler = sampler
        self._listener = listener
        self._is_inline = is_inline

    def limit(self, group: MemoryGroup) -> None:
        """Watch a group around the run's processes."""
        self._group, self._kills = group, (kills := LimitKills())

        def watch() -> None:
            group.sample()
            kills.forget_old()  # those of sites, which the server has told of

        self._sampler.on_tick = watch

    def follow(
        self, server: Process, events: socket.socket, stop: Signal, host: ProcessHost
    ) -> None:
        """Handle events until the run ends, or the server refuses the job: a UsageError."""
        channel: MessageChannel[AnyEvent] = MessageChannel(events, "the server", AnyEvent)
        try:
            while self._history.status == "running":
                if not channel.has_input():
                    host.attend(events.fileno())
                self._take(channel.receive(abort=stop))
        except AbortedError:
            self._stop(events, channel)
        except StreamingError:
            code = server.exit_code(_EXIT_SECONDS)
            end = "has ended, and all other processes" if code is None else how_ended(code)
            if self._kills is not None and code in (None, -signal.SIGKILL):
                end += self._kills.clause()
            name = FORK_SERVER if code is None else SERVER
            self.end(f"the {name} {end}; go on with --resume")
        finally:
            channel.close()
        if self.tracker is not None:
            for warning in self.tracker.finish(host.attend):
                self._history.apply(Warned(message=warning))

    def summary(self, job: Job) -> Summary:
        """Return the summary of a job's run, all but its seconds."""
        if not self._history.facts.job:  # no server came as far as to say what the run is
            self._history.facts = run_started(job)
        summary, peaks = summarize(self._history), self._sampler.peaks()
        summary.settings = {key: render_value(it) for key, it in leaves(job.written())}
        processes = self._history.facts.processes
        summary.memory = MemorySummary(
            peaks.get(SERVER, ProcessMemory()),
            {name: peaks[name] for name in processes if name in peaks},
            self._sampler.peak_total_pss,
            dict(self._sampler.nodes) or UNSET,
            peaks.get(EVALUATOR, UNSET),
            UNSET if self._group is None else self._group.peak(),
            UNSET if self._group is None else self._group.peak_anonymous,
        )
        return summary

    def end(self, error: str, status: Literal["failed", "stopped"] = "failed") -> None:
        """Mark the run as failed or stopped, unless it has ended already."""
        if self._history.status == "running":
            self._take(RunFinished(status=status, error=error))

    def _stop(self, server: socket.socket, channel: MessageChannel[AnyEvent]) -> None:
        """Ask the server to stop, and handle the events that it still sends."""
        server.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _STOP_SECONDS
        try:
            while self._history.status == "running":
                self._take(channel.receive(timeout=max(deadline - time.monotonic(), 0.0)))
        except StreamingError:
            self.end(_STOPPED, "stopped")

    def _take(self, event: AnyEvent) -> None:
        if not isinstance(event, LiveEvent):
            self._history.apply(event)
            if self.tracker is not None:
                self.tracker.wake()
        match event:
            case ProcessStarted(process=name, pid=pid):
                self._sampler.watch(name, pid)
            case NodeMeasured():
                self._sampler.take(event.node, event.memory)
            case ProcessReady(process=name) | ProcessEnded(process=name) if (
                self._is_inline and name != SERVER
            ):
                pass  # its memory is not told apart from that of the server
            case ProcessReady(process=name):
                self._sampler.note(name, idle_rss=event.idle_rss)
                if event.others and self._sampler.watches(name):
                    self._sampler.watch(name, event.pid, event.others)
            case ProcessEnded(process=name):
                self._sampler.note(name, peak_rss=event.peak_rss)
            case RunRefused(error=error):
                raise UsageError(error)
            case NodeLost(node=node, reason=reason):
                self._history.apply(Warned(message=f"node {node}: {reason}"))
                self._sampler.forget(node)
            case NodeJoined(node=node, other_processor=other) if other:
                message = f"node {node} has another processor ({other}), which may round otherwise"
                self._history.apply(Warned(message=message))
        if self._listener is not None:
            try:
                self._listener(event, self._sampler)
            except OSError:
                self._listener = None  # its terminal is gone, which does not concern the run
