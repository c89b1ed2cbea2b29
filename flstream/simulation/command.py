"""The command of a site: a launcher, and the processes (ranks) in which it runs the script.

Rank 0 is handed the sockets to the server, and exchanges models with it. The worker's process keeps
the one for control messages: it says why the site has failed, or that all ranks have ended.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flstream.client.ranks import INHERITED
from flstream.client.site_folder import enter_work_folder
from flstream.engines.engine import WorkerSockets
from flstream.engines.fork_server import temporary_prefix
from flstream.engines.processes import kill_descendants
from flstream.errors import FlstreamError, SimulationError
from flstream.telemetry.events import SERVER
from flstream.text import how_ended
from flstream.transport.messages import MessageChannel
from flstream.worker.code import ScriptCode
from flstream.worker.code_errors import CodeFailure
from flstream.worker.messages import Failed, Goodbye, ToWorker
from flstream.worker.run_script import last_line
from flstream.worker.worker_info import WorkerInfo

FOLDER = "FLSTREAM_COMMAND"
"""Environment variable with the path of the command's folder."""
SOCKET, INFO = "s", "info"
"""Names of the socket that ranks connect to, and of a file with ``WorkerInfo``, in that folder."""

_STUB = Path(__file__).parent / "stub" / "flstream_rank.py"
_LOG = Path("/proc/self/fd/2")
_MOST_BYTES = 1 << 17
# From Linux's prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Of torchrun, which accelerate uses: a free port for each site instead of the same one for all.
_STANDALONE = {"PET_STANDALONE": "1"}
_libc = ctypes.CDLL(None)


class ScriptEnd(msgspec.Struct, frozen=True):
    """End of the script in a rank. A connection that closes before is that of a dead process.

    Attributes:
        failure: Why it failed; None if it did not.
        time: Seconds on the monotonic clock: of several failures, the first is the cause.
        peak_rss: Peak RSS of the process, in bytes.
    """

    failure: CodeFailure | None
    time: float
    peak_rss: int


def run_command(info: WorkerInfo, script: ScriptCode, threads: int, end: WorkerSockets) -> None:
    """Run a site's command, until it has ended or failed, or the server has ended.

    Args:
        info: Facts about the run and the worker.
        script: The script and the command that starts it.
        threads: Number of torch's threads in each of its processes.
        end: The worker's ends of the sockets to the server.
    """
    assert info.site is not None  # a job file in which sites share processes is refused
    assert script.command is not None
    with suppress(OSError):  # its tasks fail for the same reason
        enter_work_folder(info.sites_folder, info.site)
    own_args = info.site_args.get(info.site, {})
    info = msgspec.structs.replace(info, site_args={info.site: own_args})
    words = script.words(own_args)
    words = [*script.command, str(_STUB), str(script.path), *words]
    with (
        # Which the fork server removes if this process is killed.
        tempfile.TemporaryDirectory(
            prefix=temporary_prefix(os.getppid()), ignore_cleanup_errors=True
        ) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        Path(folder, INFO).write_bytes(msgspec.msgpack.encode(info))
        listener.setblocking(False)
        message: Failed | Goodbye | None
        try:
            _listen(listener, f"{folder}/{SOCKET}")
            message = _Command(words, threads, folder, listener, end).last_message()
        except SimulationError as error:
            message = Failed("", 0, str(error))
        finally:
            _kill_children()
    if message is not None:
        report(end, message)


def _listen(listener: socket.socket, path: str) -> None:
    """Listen on a path, which may be too long for a socket.

    Raises:
        SimulationError: It is.
    """
    try:
        listener.bind(path)
    except OSError as error:
        raise SimulationError(
            f"the ranks of train.command cannot be reached at {path}: {error}; set TMPDIR to a "
            "folder with a shorter path"
        ) from error
    listener.listen()


def report(end: WorkerSockets, message: Failed | Goodbye) -> None:
    """Send the server a worker's last message; nothing else may use the socket any more."""
    control: MessageChannel[ToWorker] = MessageChannel(end.control, SERVER, ToWorker)
    with suppress(FlstreamError):  # a server that is gone does not need it
        control.send(message)


class _Command:
    """A command that was started, and its ranks.

    Args:
        words: Words of its command line.
        threads: Number of torch's threads in each rank.
        folder: Path of its folder.
        listener: Socket that ranks connect to, which does not block.
        end: The worker's ends of the sockets to the server.

    Raises:
        SimulationError: It cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        threads: int,
        folder: str,
        listener: socket.socket,
        end: WorkerSockets,
    ) -> None:
        self._program = Path(words[0]).name
        self._listener, self._end = listener, end
        # Number of each connected rank; None before it says so.
        self._ranks: dict[socket.socket, int | None] = {}
        self._ends: dict[int, ScriptEnd | None] = {}
        self._failures: list[tuple[float, Failed]] = []
        # What a site has printed before does not explain how its command has ended.
        self._log_start = _LOG.stat().st_size
        # What a rank that is killed leaves behind, such as a data loader's processes, becomes this
        # process's, and is killed with the rest.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        parent = os.getpid()
        own = {name: value for name, value in os.environ.items() if name not in INHERITED}
        # torchrun leaves a temporary folder behind each time.
        variables = {FOLDER: folder, "TMPDIR": folder, "OMP_NUM_THREADS": str(threads)}
        try:
            self._process = subprocess.Popen(
                words,
                env={**own, **_STANDALONE, **variables},
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: _end_with(parent),
            )
        except OSError as error:
            raise SimulationError(
                f"train.command: {words[0]} cannot be started: {error.strerror}; name a program"
            ) from error
        self._ended = os.pidfd_open(self._process.pid)
        self._poll = select.poll()
        self._poll.register(self._ended, select.POLLIN)
        self._poll.register(listener, select.POLLIN)
        self._poll.register(end.control, select.POLLRDHUP)

    def last_message(self) -> Failed | Goodbye | None:
        """Serve the ranks; return the worker's last message, None if the server has ended."""
        while self._end.control.fileno() not in (ready := {fd for fd, _ in self._poll.poll()}):
            # What the ranks have sent comes before what the command's end means.
            with suppress(BlockingIOError):
                while True:
                    rank, _ = self._listener.accept()
                    self._ranks[rank] = None
                    self._poll.register(rank, select.POLLIN)
            for rank in list(self._ranks):
                self._receive(rank)
            if self._failures:
                self._failures.sort(key=lambda failure: failure[0])
                first = self._failures[0][1]
                reasons = "; ".join(failed.reason for _, failed in self._failures)
                return msgspec.structs.replace(first, reason=reasons)
            if self._ended in ready:
                return self._verdict(self._process.wait())
        return None

    def _receive(self, rank: socket.socket) -> None:
        """Receive a rank's messages: its number, and the end of its script."""
        with suppress(ConnectionError):  # it has died before it received the sockets
            try:
                while message := rank.recv(_MOST_BYTES, socket.MSG_DONTWAIT):
                    number = self._ranks[rank]
                    if number is None:
                        self._admit(rank, int(message))
                    else:
                        self._end_script(number, msgspec.msgpack.decode(message, type=ScriptEnd))
            except BlockingIOError:
                return
        self._poll.unregister(rank)
        rank.close()
        number = self._ranks.pop(rank)
        if number is not None and self._ends[number] is None:
            reason = f"rank {number} of train.command has died{self._last_line()}"
            # The launcher may have ended it because of another one, which comes first.
            self._failures.append((math.inf, Failed("", 0, reason, has_died=True)))

    def _admit(self, rank: socket.socket, number: int) -> None:
        if number in self._ends:
            reason = (
                f"two processes of train.command are rank {number}; use a launcher that gives "
                "each its number, as torchrun does in RANK"
            )
            self._failures.append((0.0, Failed("", 0, reason)))
            return
        self._ranks[rank], self._ends[number] = number, None
        if number == 0:
            socket.send_fds(rank, [b"\0"], [sock.fileno() for sock in self._end])
            # They are rank 0's alone now: its death closes them.
            for sock in (self._end.down, self._end.up, self._end.peers):
                sock.close()

    def _end_script(self, number: int, end: ScriptEnd) -> None:
        self._ends[number] = end
        if end.failure is not None:
            reason, code = end.failure
            reason = f"rank {number}: {reason}" if number else reason
            self._failures.append((end.time, Failed("", 0, reason, code)))

    def _verdict(self, code: int) -> Failed | Goodbye:
        """Return what the command's end means for the site."""
        if 0 not in self._ends:
            reason = "train.command has ended before it started the script"
        elif (first := self._ends[0]) is None:
            reason = "train.command has ended before its script"
        elif code:
            reason = "train.command has ended after its script"
        else:
            return Goodbye(first.peak_rss)
        reason = f"{reason}: {self._program} {how_ended(code)}{self._last_line()}"
        return Failed("", 0, reason, code, has_died=0 in self._ends)

    def _last_line(self) -> str:
        line = last_line(_LOG, self._log_start)
        return f" ({line})" if line else ""


def _end_with(parent: int) -> None:
    """Tie the life of this process to that of its parent."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _kill_children() -> None:
    """Kill all that this process and the command have started, and wait for its end."""
    with suppress(ChildProcessError):  # there is no child left
        while True:
            kill_descendants(os.getpid())
            os.wait()
