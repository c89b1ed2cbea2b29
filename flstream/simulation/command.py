"""The command of a site: a launcher, and the ranks that run the script.

Rank 0 is handed the sockets to the server, and exchanges models with it. The worker's process keeps
the one for control messages. The launcher's exit status is the verdict, as it ends all ranks where
one fails; why a script has failed stands in a file that its rank leaves.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flstream.client.ranks import INHERITED
from flstream.engines.engine import WorkerSockets
from flstream.engines.fork_server import adopt_orphans, end_with_parent, temporary_prefix
from flstream.engines.processes import kill_descendants
from flstream.errors import FlstreamError, SimulationError
from flstream.simulation.child import end_with_peer
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory_group import LimitKills
from flstream.text import how_ended
from flstream.transport.messages import MessageChannel
from flstream.worker.messages import Failed, Stop, ToWorker
from flstream.worker.run_script import last_line, script_words
from flstream.worker.user_code import CodeFailure, enter_work_folder
from flstream.worker.worker_info import WorkerInfo

FOLDER = "FLSTREAM_COMMAND"
"""Environment variable with the path of the command's folder."""
SOCKET, INFO = "s", "info"
"""Names of the socket that ranks connect to, and of a file with ``WorkerInfo``, in that folder."""
END = ".end"
"""Suffix of the files in that folder that have a ``ScriptEnd``."""

_STUB = Path(__file__).parent / "stub" / "flstream_rank.py"
_LOG = Path("/proc/self/fd/2")
_MOST_BYTES = 64
_SHELL_KILLED = 128 + signal.SIGKILL  # exit status of a shell whose command was killed
# For torchrun, also under accelerate: a free port for each site, not one for all.
_STANDALONE = {"PET_STANDALONE": "1"}


class ScriptEnd(msgspec.Struct, frozen=True):
    """End of the script in a rank that has not died.

    Attributes:
        rank: Number of the rank.
        failure: Why it failed; None if it did not.
        time: Seconds on the monotonic clock: of several failures, the first is the cause.
        peak_rss: Peak RSS of the process, in bytes.
    """

    rank: int
    failure: CodeFailure | None
    time: float
    peak_rss: int


def run_command(info: WorkerInfo, end: WorkerSockets) -> None:
    """Run a site's command to its end; this process ends with the server."""
    train, threads = info.job.train, info.job.clients.threads
    assert info.site is not None  # a job file in which sites share processes is refused
    assert train.command_words is not None
    end_with_peer(end.control)
    with suppress(OSError):  # its tasks fail for the same reason
        enter_work_folder(info.sites_folder, info.site)
    own_words = script_words(info.job, info.site)
    words = [*train.command_words, str(_STUB), str(train.script), *own_words]
    # The fork server removes the folder if this process is killed.
    with tempfile.TemporaryDirectory(
        prefix=temporary_prefix(os.getppid()), ignore_cleanup_errors=True
    ) as folder:
        Path(folder, INFO).write_bytes(pickle.dumps(info))
        message: Failed | Stop
        try:
            message = _last_message(words, threads, Path(folder), end)
        except SimulationError as error:
            message = Failed("", 0, str(error))
        finally:
            _kill_children()
    report(end, message)


def report(end: WorkerSockets, message: Failed | Stop) -> None:
    """Send the server a worker's last message; no one else may use the socket after."""
    control: MessageChannel[ToWorker] = MessageChannel(end.control, SERVER, ToWorker)
    with suppress(FlstreamError):  # a server that is gone does not need it
        control.send(message)


def _last_message(
    words: Sequence[str], threads: int, folder: Path, end: WorkerSockets
) -> Failed | Stop:
    """Run a command; return the worker's last message, with the cause of its end."""
    # Earlier output of a site does not explain the end of its command.
    log_start = _LOG.stat().st_size
    # What a rank that is killed leaves behind, such as a data loader's processes, becomes this
    # process's, and is killed with the rest.
    adopt_orphans()
    parent, ranks = os.getpid(), list[socket.socket]()
    listener = _listener(str(folder / SOCKET))
    threading.Thread(target=_admit, args=(listener, ranks, end), daemon=True).start()
    own = {name: value for name, value in os.environ.items() if name not in INHERITED}
    # torchrun leaves a temporary folder behind each time.
    variables = {FOLDER: str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": str(threads)}
    kills = LimitKills()
    try:
        process = subprocess.Popen(
            words,
            env={**own, **_STANDALONE, **variables},
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: end_with_parent(parent),
        )
    except OSError as error:
        raise SimulationError(
            f"train.command: {words[0]} cannot be started: {error.strerror}; name a program"
        ) from error
    code = process.wait()
    files = folder.glob(f"*{END}")
    ends = [msgspec.msgpack.decode(path.read_bytes(), type=ScriptEnd) for path in files]
    # Else the kill is another site's. A shell and torchrun outlive the rank that is killed.
    was_killed = code in (-signal.SIGKILL, _SHELL_KILLED) or len(ranks) > len(ends)
    at_limit = kills.clause(", or start fewer ranks") if was_killed else ""
    reasons, first = [], None
    for script in sorted(ends, key=lambda script: script.time):
        if script.failure is not None:
            first = first or script.failure
            reasons.append((f"rank {script.rank}: " if script.rank else "") + script.failure.reason)
    if first is not None:
        return Failed("", 0, "; ".join(reasons) + at_limit, first.exit_code)
    peaks = [script.peak_rss for script in ends if not script.rank]
    if peaks and not code:
        return Stop(peaks[0])
    if end.down.fileno() >= 0:  # which rank 0 has otherwise
        reason = "train.command has ended before it started the script"
    elif peaks:
        reason = "train.command has ended after its script"
    else:
        reason = "train.command has ended before its script"
    line = last_line(_LOG, log_start)
    reason += f": {Path(words[0]).name} {how_ended(code)}" + (f" ({line})" if line else "")
    reason += at_limit
    return Failed("", 0, reason, code, has_died=bool(ranks))


def _listener(path: str) -> socket.socket:
    """Return a socket that listens on a path; refuse a path that is too long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise SimulationError(
            f"the ranks of train.command cannot be reached at {path}: {error}; set TMPDIR to a "
            "folder with a shorter path"
        ) from error
    listener.listen()
    return listener


def _admit(listener: socket.socket, ranks: list[socket.socket], end: WorkerSockets) -> None:
    """Keep the connections of ranks, and pass the server's sockets to rank 0."""
    while True:
        rank = listener.accept()[0]
        ranks.append(rank)
        if rank.recv(_MOST_BYTES) != b"0":
            continue
        if end.down.fileno() < 0:
            rank.close()  # a second rank 0, which fails
            continue
        with suppress(OSError):  # it has died before
            socket.send_fds(rank, [b"\0"], [sock.fileno() for sock in end])
        # They are rank 0's alone now: its death closes them.
        for sock in (end.down, end.up, end.peers):
            sock.close()


def _kill_children() -> None:
    """Kill the processes that this process and the command have started."""
    with suppress(ChildProcessError):  # there is no child left
        while True:
            kill_descendants(os.getpid())
            os.wait()
