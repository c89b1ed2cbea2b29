"""Imports of the training code, found by parsing it; no code is run."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flstream.job.problems import Problem

if TYPE_CHECKING:
    from flstream.job.job import Job

_INSTALL = "install it where flstream is, or put it beside the file"
_HINTS = {
    "nvflare": "set train.alias = nvflare, or write import flstream.client as flare instead, which "
    "has the same functions"
}


class Import(NamedTuple):
    """Import of one module by one statement.

    Attributes:
        line: Line number of the statement, from 1.
        module: Dotted name, such as ``sklearn.datasets``; empty for ``from . import``.
        names: Names imported from it, which may be submodules.
        level: Number of dots before the module; 0 for an absolute import.
    """

    line: int
    module: str
    names: Sequence[str]
    level: int = 0


def imports_in(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """Yield the imports among statements: of ``tree.body``, or of ``ast.walk(tree)``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, [])
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield Import(node.lineno, node.module or "", names, node.level)


def own_files(
    source: Path,
    job_folder: Path | None = None,
    part: Callable[[ast.Module], Iterable[ast.AST]] = ast.walk,
) -> dict[Path, list[Import]]:
    """Return a file and the job's files that it imports, with their other imports.

    A file that cannot be read or parsed is included, without imports.

    Args:
        source: Path of the file.
        job_folder: Folder that is searched after that of the file; None for the latter alone.
        part: Function from a parsed file to the statements whose imports count.
    """
    folders = dict.fromkeys([source.parent, *([] if job_folder is None else [job_folder])])
    files: dict[Path, list[Import]] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop(0)
        if path in files:
            continue
        others = files[path] = []
        with suppress(OSError, SyntaxError, ValueError):
            for named in imports_in(part(ast.parse(path.read_bytes()))):
                # One dot is the folder of the file itself, each further one the folder above.
                searched = [path.parents[named.level - 1]] if named.level else folders
                for folder in searched:
                    if beside := _files_in(folder, named):
                        break
                waiting += beside
                if not (beside or named.level):
                    others.append(named)
    return files


def _files_in(folder: Path, named: Import) -> list[Path]:
    """Return the files in a folder that an import loads, before any library."""
    files, place = [], folder
    parts = named.module.split(".") if named.module else []
    for part in parts:
        place = place / part
        files += [place / "__init__.py", place.with_suffix(".py")]
    for name in named.names:
        files += [place / name / "__init__.py", (place / name).with_suffix(".py")]
    return [*filter(Path.is_file, files)]


def missing_modules(job: Job) -> Iterator[Problem]:
    """Yield a problem for each missing module that a job's training and scoring code needs.

    Imports in blocks are left out, since they may be optional.

    Args:
        job: The job.
    """
    for name, section in job.client_code.items():
        if (path := section.source) is None:
            continue
        key = f"{name}.{'learner' if section.script is None else 'script'}"
        folders = [str(path.parent), str(job.folder)]
        for line, module, _, level in imports_in(ast.parse(path.read_bytes()).body):
            top = module.partition(".")[0]
            if level or top == job.train.alias or top in sys.modules:
                continue
            # The lookup of a top-level module runs none of its code.
            if not (PathFinder.find_spec(top, folders) or importlib.util.find_spec(top)):
                message = f"{path.name} line {line} imports {module}, and there is no module {top}"
                yield Problem(key, message, "", _HINTS.get(top, _INSTALL))
