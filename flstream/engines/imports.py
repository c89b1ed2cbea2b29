"""Library imports of the training code: found in its source, done once in the fork server.

Workers inherit what the fork server has imported; otherwise each of them would spend the time and
the memory again.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from flstream.job.imports import files_beside, top_level_imports

LIBRARIES = "FLSTREAM_LIBRARIES"
"""Environment variable with the imports for the fork server, from :func:`render_imports`."""

# Importing these prints nothing, opens nothing, and starts no threads but OpenBLAS's, which end
# before a fork, so it is safe before one. All other libraries are imported by the workers, under
# the site's log and deadline.
FORK_SAFE = frozenset({"numpy", "pandas", "PIL", "scipy", "sklearn"})

# torch.optim imports it at first use, which costs most of a second and 80 MiB in every worker. It
# is imported beforehand only where the training code uses torch.optim.
_OPTIMIZERS_IMPORT = "torch._dynamo"


class LibraryImport(NamedTuple):
    """An import statement for a library.

    Attributes:
        module: name of the imported module, such as ``sklearn.datasets``.
        names: names imported from the module, some of which may be modules too.
    """

    module: str
    names: list[str]


def library_imports(source: Path) -> list[LibraryImport]:
    """Find the library imports that can be done before workers are forked.

    These are the imports at the head of a file: they always run, and before the file can set
    anything that a library reads when it is imported. The files are the training code and the
    modules beside it that it imports. A file that cannot be read or parsed counts as empty; the
    site that runs it reports the error.

    Args:
        source: path of the file with the script or the learner.

    Returns:
        The imports of fork-safe libraries, in the order in which they were found.
    """
    found: list[LibraryImport] = []
    uses_optimizer = False
    files = [source]
    for path in files:  # grows while modules beside the source are found
        with suppress(OSError, SyntaxError, ValueError):
            text = path.read_bytes()
            uses_optimizer |= b"optim" in text
            head = ast.Module([*takewhile(_sets_nothing, ast.parse(text).body)], [])
            for _, module, names in top_level_imports(head):
                statement = LibraryImport(module, names)
                own = files_beside(source.parent, module, names)
                files += [file for file in own if file not in files]
                if not own and module.partition(".")[0] in FORK_SAFE:
                    found.append(statement)
    if uses_optimizer:
        found.append(LibraryImport(_OPTIMIZERS_IMPORT, []))
    return found


def _sets_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement has no effect on libraries that are imported after it."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()]):
            return not any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return False


def render_imports(imports: Iterable[LibraryImport]) -> str:
    """Serialise imports as the value of an environment variable, for :func:`import_libraries`."""
    return json.dumps(list(imports))


def import_libraries(rendered: str) -> None:
    """Import libraries in this process; an import that fails is left to the training code.

    Args:
        rendered: imports as :func:`render_imports` serialised them.
    """
    for module, names in json.loads(rendered):
        before = set(sys.modules)
        try:
            __import__(module, fromlist=names)
        except Exception:
            # Modules that are half imported are removed, so that it fails there in the same way.
            for name in set(sys.modules) - before:
                del sys.modules[name]
