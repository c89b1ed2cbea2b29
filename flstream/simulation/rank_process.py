"""Main function of a process of a site's command: one rank of the script."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

import msgspec

from flstream.client.ranks import RankPlace
from flstream.client.session import Session
from flstream.engines.engine import WorkerSockets
from flstream.simulation.child import abandon_in_children, end_with_peer
from flstream.simulation.command import END, FOLDER, INFO, SOCKET, ScriptEnd
from flstream.simulation.worker_process import have_fork_as_default, serving
from flstream.telemetry.memory import own_peak_rss
from flstream.worker.ranks import RankStore, RankTurns
from flstream.worker.run_script import import_beside_script, run_script
from flstream.worker.turns import SiteTurns
from flstream.worker.user_code import CodeFailure, prepare_imports
from flstream.worker.worker_info import WorkerInfo

_TWICE = (
    "two processes of train.command are rank 0; use a launcher that gives each its number, as "
    "torchrun does in RANK"
)


def rank_main(words: Sequence[str]) -> int:
    """Run the training script as one rank; return the exit status, 1 if it failed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # each line at once, as in a worker's own process
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    folder, place = Path(os.environ.pop(FOLDER)), RankPlace.of(os.environ)
    # Written by the worker in a folder that it alone may enter, as it names sections of the job.
    info: WorkerInfo = pickle.loads((folder / INFO).read_bytes())
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.connect(str(folder / SOCKET))
    worker.send(str(place.rank).encode())
    sockets = None if place.rank else _sockets(worker)
    if sockets is None and not place.rank:
        return _leave(folder, 0, CodeFailure(_TWICE))
    end_with_peer(worker)
    abandon_in_children(worker.close)
    prepare_imports(info.job)
    have_fork_as_default()
    import_beside_script(info.job)
    ranks = RankStore(folder, place, _peer(worker))
    if sockets is not None:
        with serving(info, sockets) as site:
            failure = run_script(Session(SiteTurns(site, ranks)), info, words)
            ranks.publish(None)
    else:
        failure = run_script(Session(RankTurns(ranks, info)), info, words)
    sys.stdout.flush()
    return _leave(folder, place.rank, failure)


def _leave(folder: Path, rank: int, failure: CodeFailure | None) -> int:
    """Write the script's end to a file; return the exit status."""
    end = ScriptEnd(rank, failure, time.monotonic(), own_peak_rss())
    path = folder / f"{os.getpid()}"
    with suppress(OSError):  # the worker's process has ended, and this one is about to
        path.write_bytes(msgspec.msgpack.encode(end))
        path.rename(path.with_suffix(END))
    return 0 if failure is None else 1


def _peer(worker: socket.socket) -> int:
    """Return the pid of the worker's process."""
    pid: int = struct.unpack("3i", worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _sockets(worker: socket.socket) -> WorkerSockets | None:
    """Receive the sockets to the server; None in ranks other than 0."""
    flags = socket.MSG_CMSG_CLOEXEC  # or what the script starts would keep them open
    descriptors = socket.recv_fds(worker, 1, len(WorkerSockets._fields), flags)[1]
    if not descriptors:
        return None
    return WorkerSockets(*(socket.socket(fileno=descriptor) for descriptor in descriptors))
