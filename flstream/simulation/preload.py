"""The process that makes the imports of a run, and from which its processes are forked.

So a process starts in milliseconds, and the memory of the modules is shared.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from flstream.engines.fork_server import serve
from flstream.engines.imports import (
    import_libraries,
    library_imports,
    preload_libraries,
    preloaded_imports,
)
from flstream.engines.processes import PRELOAD, SOURCE

# What does not depend on the job is imported while the launcher reads the job. All others load
# NumPy or torch, which read environment variables that the job sets.
_FIRST = ("flstream.job", "flstream.telemetry.memory")
_OTHERS = (
    "torch",
    "flstream.simulation.model_builder",
    "flstream.simulation.server_process",
    "flstream.simulation.worker_process",
)
_MOST_BYTES = 1 << 20


def main(fd: int) -> None:
    """Import all that the processes of a job need, and fork them at the launcher's request.

    Args:
        fd: Descriptor of the socket to the launcher, which sends the job's environment variables
            first.
    """
    # A launcher whose parent ignores it would leave that to all processes, which wait for others.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Imports leave next to no garbage, and collecting it would be a quarter of their time.
    gc.disable()
    _import(_FIRST)
    with socket.socket(fileno=fd) as launcher:
        variables = launcher.recv(_MOST_BYTES)
        if not variables:
            return  # the launcher is gone
        os.environ.update(json.loads(variables))
        _import(_OTHERS)
        source = Path(path) if (path := os.environ.pop(SOURCE, "")) else None
        libraries = [name for name in os.environ.pop(PRELOAD, "").split(",") if name]
        import_libraries(library_imports(source))
        preload_libraries(preloaded_imports(source, libraries))
        # All objects so far are exempt from garbage collection: traversing them would cost every
        # process time, and copies of the pages that the processes share.
        gc.freeze()
        gc.enable()
        # Each site costs the server some descriptors. The soft limit of many systems is 1,024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        serve(launcher)


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
