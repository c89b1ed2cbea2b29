"""What training code imports from libraries, found without running it.

Imported once in the fork server, it is there for every worker. Left to the workers, it would take
its time, and its memory, in each of them.
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

from flstream.job.code import top_level_imports

LIBRARIES = "FLSTREAM_LIBRARIES"
"""The variable that says what the fork server is to import."""

# Importing these prints nothing, opens nothing, and starts no threads but OpenBLAS's, which end
# before a fork: so it can be done before one. All others are left to the worker, where they come
# under the site's log and deadline.
FORK_SAFE = frozenset({"numpy", "pandas", "PIL", "scipy", "sklearn"})

# torch.optim imports it at first use: most of a second and 80 MiB in every worker. Code that does
# not train with it has no use for it.
_OPTIMIZERS_IMPORT = "torch._dynamo"


class LibraryImport(NamedTuple):
    """A statement that imports from a library.

    Attributes:
        module: that is imported, such as ``sklearn.datasets``.
        names: what is taken from it; some of them may be modules, too.
    """

    module: str
    names: list[str]


def library_imports(source: Path) -> list[LibraryImport]:
    """Find what can be imported before workers are forked.

    That is what the statements at the head of a file import, which run whatever happens and before
    the file could set anything that a library heeds when it is imported. The files are the training
    code, and what it imports from beside itself. One that cannot be read or parsed
    counts as empty: the site that runs it will say what is wrong.

    Args:
        source: the file with the script or the learner.
    """
    found: list[LibraryImport] = []
    uses_optimizer = False
    files = [source]
    for path in files:  # which grows meanwhile
        with suppress(OSError, SyntaxError, ValueError):
            text = path.read_bytes()
            uses_optimizer |= b"optim" in text
            head = ast.Module([*takewhile(_sets_nothing, ast.parse(text).body)], [])
            for _, module, names in top_level_imports(head):
                statement = LibraryImport(module, names)
                own = _files_beside(source.parent, statement)
                files += [file for file in own if file not in files]
                if not own and module.partition(".")[0] in FORK_SAFE:
                    found.append(statement)
    if uses_optimizer:
        found.append(LibraryImport(_OPTIMIZERS_IMPORT, []))
    return found


def _sets_nothing(statement: ast.stmt) -> bool:
    """Whether a statement does nothing that a library imported after it could notice."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()]):
            return not any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return False


def render_imports(imports: Iterable[LibraryImport]) -> str:
    """Write them as the value of a variable, for :func:`import_libraries`."""
    return json.dumps(list(imports))


def import_libraries(rendered: str) -> None:
    """Import what was found. What fails is left to the training code, to fail there."""
    for module, names in json.loads(rendered):
        before = set(sys.modules)
        try:
            __import__(module, fromlist=names)
        except Exception:
            # It is to fail there in the same way, so nothing stays behind half imported.
            for name in set(sys.modules) - before:
                del sys.modules[name]


def _files_beside(folder: Path, statement: LibraryImport) -> list[Path]:
    """The files in the training code's folder that a statement imports; they precede libraries."""
    parts = statement.module.split(".")
    modules = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    modules += [modules[-1] / name for name in statement.names]
    files = [file for each in modules for file in (each / "__init__.py", each.with_suffix(".py"))]
    return [file for file in files if file.is_file()]
