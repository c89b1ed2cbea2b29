"""Code that a job file names: `module:name`, or `/path/to/file.py:name`."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


def find_named(named: str) -> Any | None:
    """Import what a resolved job names, with what it needs from beside it.

    Args:
        named: as `Factory` resolves it.

    Returns:
        The object; None if the module has none of that name.
    """
    where, _, name = named.rpartition(":")
    if not where.endswith(".py"):
        return getattr(importlib.import_module(where), name, None)
    path = Path(where)
    # What the file imports from beside itself must be found, as it is for a script.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # What the file defines may be looked up by its module's name. A module of that name that
    # is there already, such as Python's own ``random``, stays.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return getattr(module, name, None)


class Import(NamedTuple):
    """What one statement imports from one module.

    Attributes:
        line: of the statement.
        module: that is imported, such as ``sklearn.datasets``.
        names: what is taken from it; some of them may be modules, too.
    """

    line: int
    module: str
    names: list[str]


def top_level_imports(tree: ast.Module) -> Iterator[Import]:
    """What a file imports whatever happens: an import in a block may have an alternative.

    Relative imports are left out.
    """
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield Import(node.lineno, node.module, [alias.name for alias in node.names])
