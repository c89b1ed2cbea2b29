"""Library imports of the training code: found in its source and done by the fork server, once.

Workers inherit what the fork server has imported; otherwise each of them would spend the time and
the memory again.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from flstream.errors import SimulationError
from flstream.job.imports import own_files

# OpenBLAS ends its threads before a fork, but they would be counted among those of a library. One
# that a library brings along, as SciPy does, then has one thread in the sites, too.
_FEWER_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
# Those of the libraries that the job asks for which started threads.
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


def library_imports(source: Path | None) -> list[LibraryImport]:
    """Find the library imports that can be done before workers are forked.

    These are the imports at the head of a file: they always run, and before the file can set
    anything that a library reads when it is imported. The files are the training code and the
    modules beside it that it imports. A file that cannot be read or parsed counts as empty; the
    site that runs it reports the error.

    Args:
        source: Path of the file with the script or the learner; None for an installed module.

    Returns:
        The imports of fork-safe libraries, in the order in which they were found.
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
    """Return the imports of libraries that a job asks for.

    They are the libraries themselves, and what the training code imports from them, anywhere in its
    files: many of them import their parts only when these are asked for.

    Args:
        source: Path of the training code's file; None for that of an installed module.
        libraries: Names of the libraries.
    """
    files = own_files(source) if source is not None and libraries else {}
    return [(library, []) for library in libraries] + [
        (module, names)
        for others in files.values()
        for _, module, names, _ in others
        if any(f"{module}.".startswith(f"{library}.") for library in libraries)
    ]


def _sets_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement has no effect on libraries that are imported after it."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()]):
            return not any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return False


def import_libraries(imports: Iterable[LibraryImport]) -> None:
    """Import libraries in this process; an import that fails is left to the training code.

    Args:
        imports: Imports, in order.
    """
    for module, names in imports:
        before = set(sys.modules)
        try:
            __import__(module, fromlist=names)
        except Exception:
            # Modules that are half imported are removed, so that it fails there in the same way.
            for name in set(sys.modules) - before:
                del sys.modules[name]


def preload_libraries(imports: Iterable[LibraryImport]) -> None:
    """Import libraries in this process, and see whether they start threads.

    Args:
        imports: Imports, in order.
    """
    before = {name: os.environ.get(name) for name in _FEWER_THREADS}
    os.environ.update(_FEWER_THREADS)
    for library in imports:
        count = _threads()
        import_libraries([library])
        if _threads() > count:
            _started_threads.append(library[0])
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def expect_no_threads() -> None:
    """Refuse to go on in a process that was forked while libraries had threads.

    Raises:
        SimulationError: There were such threads; the message names the libraries.
    """
    if _started_threads:
        names = ", ".join(dict.fromkeys(_started_threads))
        raise SimulationError(
            f"train.preload: the import of {names} starts threads, which no process keeps that is "
            "forked after it; leave it out of the list"
        )


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
