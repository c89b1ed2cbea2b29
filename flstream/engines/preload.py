"""The process that makes the imports of a run, and that forks the run's processes.

So a process starts in milliseconds, and the memory of the modules is shared. Also libraries of the
training code are imported here, as far as its source names them and a fork after it is safe.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from flstream.engines.fork_server import serve
from flstream.engines.processes import PRELOAD, SOURCE
from flstream.errors import SimulationError
from flstream.job.imports import own_files

# What does not depend on the job is imported while the launcher reads the job. All others load
# NumPy or torch, which read environment variables that the job sets.
_FIRST = ("flstream.job", "flstream.telemetry.memory")
_OTHERS = ("torch", "flstream.simulation.server_process")
_MOST_BYTES = 1 << 20

# OpenBLAS ends its threads before a fork, but they would be counted among those of a library. One
# that a library brings along, as SciPy does, then has one thread in the sites, too.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Libraries of the job that have started threads.
_started_threads: list[str] = []

# Importing these prints nothing, opens nothing, and starts no threads but OpenBLAS's, which end
# before a fork, so it is safe before one. All other libraries are imported by the workers, under
# the site's log and deadline.
FORK_SAFE = frozenset({"numpy", "pandas", "PIL", "scipy", "sklearn"})

# torch.optim imports it at first use, which costs most of a second and 80 MiB in every worker. It
# is imported beforehand only where the training code uses torch.optim.
_OPTIMIZERS_IMPORT = "torch._dynamo"

LibraryImport = tuple[str, Sequence[str]]
"""A module, such as ``sklearn.datasets``, and the names imported from it."""


def main(fd: int) -> None:
    """Import what a job's processes need, and fork them at the launcher's request.

    Args:
        fd: Descriptor of the socket to the launcher, which sends the job's environment variables
            first.
    """
    # A launcher whose parent ignores it would leave that to all processes, which wait for others.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Imports leave next to no garbage, and collecting it would be a quarter of their time.
    gc.disable()
    for name in _FIRST:
        importlib.import_module(name)
    with socket.socket(fileno=fd) as launcher:
        variables = launcher.recv(_MOST_BYTES)
        if not variables:
            return  # the launcher is gone
        os.environ.update(json.loads(variables))
        for name in _OTHERS:
            importlib.import_module(name)
        source = Path(path) if (path := os.environ.pop(SOURCE, "")) else None
        libraries = [name for name in os.environ.pop(PRELOAD, "").split(",") if name]
        import_libraries(library_imports(source))
        _preload(preloaded_imports(source, libraries))
        # All objects so far are exempt from garbage collection: traversing them would cost every
        # process time, and copies of the pages that the processes share.
        gc.freeze()
        gc.enable()
        # Each site costs the server some descriptors. The soft limit of many systems is 1,024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        serve(launcher)


def library_imports(source: Path | None) -> list[LibraryImport]:
    """Find the imports of fork-safe libraries at the head of the training code.

    Those always run, and before a file can set anything that a library reads when it is imported.
    They come in order. A file that cannot be read or parsed counts as empty; the site that runs it
    reports the error.
    """
    if source is None:
        return []
    files = own_files(source, part=lambda tree: takewhile(_sets_nothing, tree.body))
    imports: list[LibraryImport] = [
        (module, names)
        for others in files.values()
        for _, module, names, _ in others
        if module.partition(".")[0] in FORK_SAFE
    ]
    with suppress(OSError):
        if any(b"optim" in path.read_bytes() for path in files):
            imports.append((_OPTIMIZERS_IMPORT, []))
    return imports


def preloaded_imports(source: Path | None, libraries: Sequence[str]) -> list[LibraryImport]:
    """Return the imports of a job's libraries anywhere in the training code's files.

    Many libraries import their parts only when these are asked for.
    """
    files = own_files(source) if source is not None and libraries else {}
    return [(library, []) for library in libraries] + [
        (module, names)
        for others in files.values()
        for _, module, names, _ in others
        if any(f"{module}.".startswith(f"{library}.") for library in libraries)
    ]


def import_libraries(imports: Sequence[LibraryImport]) -> None:
    """Import libraries in this process; leave a failing import to the training code."""
    for module, names in imports:
        before = set(sys.modules)
        try:
            __import__(module, fromlist=names)
        except Exception:
            # Modules that are half imported are removed, so that it fails there in the same way.
            for name in set(sys.modules) - before:
                del sys.modules[name]


def expect_no_threads() -> None:
    """Refuse to run in a process that was forked while libraries had threads.

    Raises:
        SimulationError: There were such threads; the message names the libraries.
    """
    if _started_threads:
        names = ", ".join(dict.fromkeys(_started_threads))
        raise SimulationError(
            f"train.preload: the import of {names} starts threads, which no process keeps that is "
            "forked after it; leave it out of the list"
        )


def _preload(imports: Sequence[LibraryImport]) -> None:
    """Import a job's libraries, and see whether they start threads."""
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    for library in imports:
        count = len(os.listdir("/proc/self/task"))
        import_libraries([library])
        if len(os.listdir("/proc/self/task")) > count:
            _started_threads.append(library[0])
    del os.environ[_BLAS_THREADS]
    if before is not None:
        os.environ[_BLAS_THREADS] = before


def _sets_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement has no effect on libraries imported after it."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()]):
            return not any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return False
