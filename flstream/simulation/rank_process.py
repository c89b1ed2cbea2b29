"""Main function of a process of a site's command, which runs the training script as one rank."""

from __future__ import annotations

import os
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
from flstream.client.session import enter
from flstream.engines.engine import WorkerSockets
from flstream.job.code import make_importable
from flstream.simulation.child import abandon_in_children, end_with_peer
from flstream.simulation.command import FOLDER, INFO, SOCKET, ScriptEnd
from flstream.simulation.worker_process import have_fork_as_default, serving
from flstream.telemetry.memory import own_peak_rss
from flstream.worker.alias import install as install_alias
from flstream.worker.rank_session import RankSession
from flstream.worker.rank_store import RankStore
from flstream.worker.run_script import run_script, run_session
from flstream.worker.session import Session
from flstream.worker.worker_info import WorkerInfo


def rank_main(script: Path, words: Sequence[str]) -> int:
    """Run a training script as one rank of a site's command.

    Args:
        script: Path of the script.
        words: Words of its command line.

    Returns:
        The exit status: 0, or 1 if the script has failed.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # each line at once, as in a worker's own process
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    folder, place = Path(os.environ.pop(FOLDER)), RankPlace.of(os.environ)
    info = msgspec.msgpack.decode((folder / INFO).read_bytes(), type=WorkerInfo)
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.connect(str(folder / SOCKET))
    worker.send(str(place.rank).encode())
    end_with_peer(worker)
    abandon_in_children(worker.close)
    if info.alias is not None:
        install_alias()
    make_importable(info.job_folder)
    have_fork_as_default()
    sys.path.insert(0, str(script.parent))
    ranks = RankStore(folder, place, _peer(worker))
    if place.rank == 0:
        with serving(info, _sockets(worker)) as site:
            session = Session(site, ranks=ranks)
            enter(session)
            failure = run_session(session, script, words)
            ranks.end()
    else:
        other = RankSession(ranks, info)
        enter(other)
        failure = run_script(script, words, info, other.site)
    sys.stdout.flush()
    end = ScriptEnd(failure, time.monotonic(), own_peak_rss())
    with suppress(OSError):  # the worker's process has ended, and this one is about to
        worker.send(msgspec.msgpack.encode(end))
    return 0 if failure is None else 1


def _peer(worker: socket.socket) -> int:
    """Return the pid of the worker's process."""
    pid: int = struct.unpack("3i", worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _sockets(worker: socket.socket) -> WorkerSockets:
    """Receive the sockets to the server."""
    flags = socket.MSG_CMSG_CLOEXEC  # or what the script starts would keep them open
    descriptors = socket.recv_fds(worker, 1, len(WorkerSockets._fields), flags)[1]
    return WorkerSockets(*(socket.socket(fileno=descriptor) for descriptor in descriptors))
