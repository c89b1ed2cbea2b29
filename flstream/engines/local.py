"""The engine of this machine: forked or threaded workers on socket pairs."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from flstream.engines.engine import worker_socket_pairs
from flstream.engines.processes import Process, ProcessHost
from flstream.errors import WorkerLostError

if TYPE_CHECKING:
    from flstream.engines.gpus import GpuDealer


class LocalEngine:
    """Starts workers on this machine.

    Args:
        host: Host of their processes, which ends them.
        main: Function that a worker's process runs, as ``package.module:name``: with the arguments,
            its name, its GPUs and its ends of the sockets.
        arguments: Arguments that all of them share.
        gpus: GPUs that are dealt out to them; None where all see all.
    """

    failure = ""

    def __init__(
        self,
        host: ProcessHost,
        main: str,
        arguments: Sequence[Any],
        gpus: GpuDealer | None = None,
    ) -> None:
        self._host = host
        self._main = main
        self._arguments = arguments
        self._gpus = gpus
        self._workers: dict[str, Process] = {}

    def start(self, name: str) -> Process:
        """Fork a worker, and connect it by socket pairs: see :class:`Engine`."""
        gpus = None if self._gpus is None else self._gpus.deal(name)
        ours, theirs = worker_socket_pairs()
        # The server sees a socket close only if no copy of the worker's end is open here.
        with closing(theirs):
            try:
                process = self._host.start(name, self._main, *self._arguments, name, gpus, theirs)
            except OSError as error:
                ours.close()
                if error.errno == errno.EMFILE:  # as where there is no room for the sockets
                    raise
                raise WorkerLostError(f"its process could not be started: {error}") from error
        process.ends = ours
        self._workers[name] = process
        return process

    def watch(self, name: str, pid: int, others: Sequence[int]) -> None:
        """Return at once: the launcher watches the processes of its machine."""

    def close(self, seconds: float = 0.0) -> None:
        """Wait for the workers' end, ``seconds`` at most; the host ends the others."""
        ends = time.monotonic() + seconds
        for worker in list(self._workers.values()):  # others may still start
            worker.exit_code(max(ends - time.monotonic(), 0.0))
