"""Imports of Python files, found by parsing them; no code is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """Import of one module by one statement.

    Attributes:
        line: Line number of the statement, from 1.
        module: Dotted name of the module, such as ``sklearn.datasets``.
        names: Names imported from it, which may be submodules.
    """

    line: int
    module: str
    names: list[str]


def top_level_imports(tree: ast.Module) -> Iterator[Import]:
    """Yield the absolute imports at a file's top level.

    Imports inside blocks are left out, since they may be optional.
    """
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield Import(node.lineno, node.module, [alias.name for alias in node.names])


def all_imports(tree: ast.Module) -> Iterator[Import]:
    """Yield the absolute imports anywhere in a file, also in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from top_level_imports(ast.Module([node], []))


def files_beside(folder: Path, module: str, names: Sequence[str]) -> list[Path]:
    """Return the files in a folder that an import loads; they take precedence over libraries.

    Args:
        folder: Folder of the importing code.
        module: Dotted name of the module, such as ``parts.data``; empty for the folder itself.
        names: Names imported from it, which may be submodules.
    """
    parts = module.split(".") if module else []
    modules = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    modules += [folder.joinpath(*parts, name) for name in names]
    files = [file for each in modules for file in (each / "__init__.py", each.with_suffix(".py"))]
    return [file for file in files if file.is_file()]


def own_files(source: Path, job_folder: Path | None = None) -> list[Path]:
    """Return a file and the files of the job that it imports, directly or indirectly.

    Imports anywhere in the code count. A file that cannot be read or parsed is included, without
    its imports.

    Args:
        source: Path of the file.
        job_folder: Folder that is searched after that of the file; None for the latter alone.
    """
    roots = dict.fromkeys([source.parent, *([] if job_folder is None else [job_folder])])
    files = [source]
    for path in files:  # grows during the loop
        with suppress(OSError, SyntaxError, ValueError):
            for folder, module, names in _all_imports(ast.parse(path.read_bytes()), path):
                searched = roots if folder is None else [folder]
                found = [files_beside(each, module, names) for each in searched]
                first = next((each for each in found if each), [])
                files += [file for file in dict.fromkeys(first) if file not in files]
    return files


def _all_imports(tree: ast.Module, path: Path) -> Iterator[tuple[Path | None, str, Sequence[str]]]:
    """Yield each import of a file: its folder if it is relative, the module, imported names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((None, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # One dot is the folder of the file itself, each further one the folder above.
            folder = path.parents[node.level - 1] if node.level else None
            yield folder, node.module or "", [alias.name for alias in node.names]
