"""The agent of a node: it starts, watches and kills the workers of a run on its machine."""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from multiprocessing import connection
from pathlib import Path

from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import WorkerSockets
from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.engines.job_archive import receive_archive
from flstream.engines.key_file import read_key_file
from flstream.engines.node_channel import NodeChannel, OutputSender, repeating
from flstream.engines.node_files import NodeFiles, OwnFiles, SharedFiles, sees_run
from flstream.engines.node_messages import (
    AGENT,
    BEAT_SECONDS,
    SILENT_SECONDS,
    Beat,
    KillWorker,
    LeaveRun,
    NodeHello,
    NodeJob,
    NodeReady,
    NodeRefused,
    NodeUnfit,
    StartWorker,
    ToNode,
    WatchWorker,
    WorkerEnded,
    WorkerRuns,
)
from flstream.engines.process_tree import kill_descendants
from flstream.engines.processes import FORK_SERVER, ProcessHost
from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    FlstreamError,
    ProtocolError,
    SimulationError,
    StreamingError,
)
from flstream.telemetry.machine import this_machine
from flstream.telemetry.memory import MemorySampler
from flstream.text import error_text
from flstream.transport.authentication import StartToken
from flstream.transport.channel import AbortSignal, Deadline, wait_readable
from flstream.transport.sockets import SocketChannel
from flstream.transport.tcp import dial, expect_address

RUN = "the run"
"""Name of the launcher at the other end of an agent's connection."""

# Seconds between two looks for a run that is not there yet. There is nothing to wait on: the key
# file may be on a file system of another machine, and nobody tells when a port is listened on.
_LOOK_SECONDS = 0.2

# Seconds between two looks for what processes have printed.
_OUTPUT_SECONDS = 0.25
# Seconds for the fork server to do its imports.
_IMPORT_SECONDS = 50.0
# Length of the longest reason that is sent.
_MOST_REASON = 1000

StartProcess = Callable[[int, WorkerInfo, WorkerSockets], int]
"""Function that starts a worker's process under its number, and returns its pid."""


def join(address: str, key_file: Path, wait: float, stop: AbortSignal) -> SocketChannel:
    """Connect to a run, which may begin later than this.

    Args:
        address: Where the run has nodes join, ``HOST:PORT``.
        key_file: The file with its key, read anew for each try.
        wait: Seconds to wait for both.
        stop: Signal to wait no longer.

    Raises:
        UsageError: The address is none, or the key file has no key.
        SimulationError: There is no such run.
        AbortedError: The signal was set.
    """
    expect_address(address)
    until = time.monotonic() + wait
    while True:
        key = read_key_file(key_file)
        flaw = f"there is no key file {key_file}"
        if key is not None:
            try:
                return dial(address, key, RUN, AGENT)
            except ChannelClosedError as error:
                flaw = str(error)
        if time.monotonic() >= until:
            raise SimulationError(
                f"no run could be joined within {wait:g} s (--wait): {flaw}; start it with "
                "flstream simulate JOB --engine join and the same key file"
            )
        wait_readable(stop.fileno(), Deadline(_LOOK_SECONDS), None, RUN)
        if stop.is_set():
            raise AbortedError("stopped before there was a run")


class NodeAgent:
    """The agent of one run on this machine.

    Args:
        channel: Connection to the launcher.
        address: Where it is, for the connections of workers.
        host: Where processes are started from; their names are the workers' numbers.
        cpus: How many workers the node has room for.

    Attributes:
        job: What all workers of the node have in common.

    Raises:
        SimulationError: The launcher refuses the node; the message says why.
        StreamingError: The launcher is gone.
    """

    def __init__(self, channel: SocketChannel, address: str, host: ProcessHost, cpus: int) -> None:
        self._channel: NodeChannel[ToNode] = NodeChannel(channel, RUN, ToNode)
        self._address = address
        self._host = host
        self._pids: dict[int, int] = {}
        self._visible = visible_gpus()
        machine = this_machine()
        self._channel.send(
            NodeHello(
                host=platform.node() or "node",
                cpus=cpus,
                gpus=len(self._visible),
                versions=machine.versions,
                processor=machine.processor,
                time=time.time(),
            )
        )
        answer = self._channel.receive(SILENT_SECONDS)
        if isinstance(answer, NodeRefused):
            raise SimulationError(f"this node cannot join: {answer.reason}")
        if not isinstance(answer, NodeJob):
            raise SimulationError(f"the run answered {type(answer).__name__}, out of turn")
        self.job = answer
        self._gpus = GpuDealer(self._visible, answer.gpus)

    def files(self, parent: Path | None, stop: AbortSignal) -> NodeFiles:
        """Return the files of the run, where this node sees them, or as they are sent to it.

        Args:
            parent: Absolute path of a folder to have them in, if they are sent, and to keep them
                in; None for a temporary one.
            stop: Signal that ends this.

        Raises:
            SimulationError: They cannot be had here, or the launcher is gone; the message says why.
            AbortedError: The signal was set.
        """
        if sees_run(self.job):
            return SharedFiles(self.job)
        try:
            with tempfile.TemporaryFile() as archive:
                receive_archive(self._channel, archive, stop)
                return OwnFiles(self.job, archive, parent)
        except AbortedError:
            raise
        except (OSError, ProtocolError) as error:
            flaw = error_text(error) if isinstance(error, OSError) else str(error)
            flaw = f"the job's folder cannot be kept here: {flaw} (TMPDIR, --folder)"
            with suppress(StreamingError):
                self._channel.send(NodeUnfit(flaw[:_MOST_REASON]))
            raise SimulationError(f"this node cannot join: {flaw}") from error
        except StreamingError as error:
            raise SimulationError(f"the run is gone: {error}") from error

    def serve(self, start: StartProcess, files: NodeFiles, stop: AbortSignal) -> None:
        """Do what the launcher asks for, until the run is over.

        However this ends, no process of the run lives on this node afterwards.

        Args:
            start: Starts a worker's process.
            files: The files of the run.
            stop: Signal that ends this.

        Raises:
            SimulationError: The launcher is gone.
            AbortedError: The signal was set.
        """
        output = OutputSender(self._channel, files)
        self._host.prepare(files.job.variables)
        with self._host, MemorySampler(keeps=True) as sampler:

            def beat() -> None:
                self._channel.send(Beat(time.time(), sampler.collect()))

            sampler.watch(f"{self.job.node}/{AGENT}", os.getpid())
            sampler.watch(f"{self.job.node}/{FORK_SERVER}", self._host.fork_server_pid() or 0)
            # Its imports may take long on a cold file system, and the first process waits for them.
            self._host.start("0", "time:sleep", 0)
            self._host.exit_code("0", _IMPORT_SECONDS)
            self._host.take_ended()
            try:
                self._channel.send(NodeReady(files.sees_run))
                beat()  # at once, so that the run knows of a node that is lost within a second
                # On threads of their own: output may be much, and no beat is to wait for it.
                with (
                    repeating("beats", BEAT_SECONDS, beat),
                    repeating("output", _OUTPUT_SECONDS, output.send),
                ):
                    over = self._follow(start, sampler, output, stop)
            except AbortedError:
                raise
            except StreamingError as error:
                raise SimulationError(f"the run is gone: {error}") from error
            self._host.wait(over.seconds)
            with suppress(StreamingError):  # the last samples, if somebody still wants them
                output.finish()
                beat()

    def _follow(
        self, start: StartProcess, sampler: MemorySampler, output: OutputSender, stop: AbortSignal
    ) -> LeaveRun:
        seen_at = time.monotonic()
        while True:
            waiting = [self._channel.fileno(), stop.fileno(), *self._host.sentinels()]
            silent_at = seen_at + SILENT_SECONDS
            connection.wait(waiting, max(silent_at - time.monotonic(), 0.0))
            if stop.is_set():
                raise AbortedError("stopped")
            # First, so that no message is about a process whose number another one may have.
            ended = self._host.take_ended()
            if ended:
                output.send()  # which may say why
            for name, status in ended.items():
                self._pids.pop(int(name), None)
                self._gpus.give_back(name)
                self._channel.send(WorkerEnded(int(name), status))
            if self._channel.has_input():
                message = self._channel.receive(SILENT_SECONDS)
                seen_at = time.monotonic()
                if isinstance(message, LeaveRun):
                    return message
                self._take(message, start, sampler)
            elif time.monotonic() >= silent_at:
                raise ChannelClosedError(f"it gave no sign of life for {SILENT_SECONDS:g} s")

    def _take(self, message: ToNode, start: StartProcess, sampler: MemorySampler) -> None:
        match message:
            case StartWorker(number, info):
                try:
                    pid = self._start_worker(message, start)
                except Exception as error:  # the launcher needs an answer in any case
                    self._gpus.give_back(str(number))
                    is_ours = isinstance(error, FlstreamError)
                    reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
                    self._channel.send(WorkerEnded(number, reason=reason[:_MOST_REASON]))
                    return
                self._pids[number] = pid
                sampler.watch(info.name, pid)
                self._channel.send(WorkerRuns(number, pid))
            case WatchWorker(name, pid, others) if sampler.watches(name):
                sampler.watch(name, pid, others)
            case KillWorker(number) if number in self._pids:
                kill_descendants(self._pids[number])
                with suppress(ProcessLookupError):
                    os.kill(self._pids[number], signal.SIGKILL)

    def _start_worker(self, message: StartWorker, start: StartProcess) -> int:
        """Dial a worker's connections, and hand them to a process of its own."""
        with ExitStack() as stack:
            ends = {}
            for role, key in message.keys.items():
                channel = dial(self._address, StartToken(key), RUN, role)
                ends[role] = stack.enter_context(closing(channel.detach()))
            info = self._gpus.equip(message.info, str(message.number))
            return start(message.number, info, WorkerSockets(**ends))
