"""Methods of a class as its code has them, its own and inherited ones; no code is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from flstream.job.imports import own_files, parsed

# The one base class of another file of which it is known what it has, and what is left to define.
_LEARNER = ("flstream.client.Learner", "flstream.client.learner.Learner")
_HAS = frozenset({"setup"})
_DECORATORS = ("dataclass", "dataclasses.dataclass")


class _FoundClass(NamedTuple):
    """A class, and what the names that its file imports stand for."""

    node: ast.ClassDef
    imported: dict[str, str]


def methods_of(name: str, path: Path, job_folder: Path | None = None) -> frozenset[str] | None:
    """Return the names of a class's methods.

    Args:
        name: Name of the class.
        path: File that defines it, or imports it from one of the job.
        job_folder: Folder that is searched for what the file imports, after that of the file.

    Returns:
        The names; None where the code does not tell: there is no such class, or it may have methods
        from elsewhere, such as a base class of a library, a decorator, or ``setattr``.
    """
    classes: dict[str, _FoundClass] = {}
    methods: set[str] = set()
    for tree in parsed(own_files(path, job_folder)):
        imported = dict(_imported(tree))
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    classes.setdefault(node.name, _FoundClass(node, imported))
                case ast.Attribute(attr=attribute, ctx=ast.Store()):
                    methods.add(attribute)  # of whatever object, which may be one of this class
                case ast.Name(id="setattr"):
                    return None
    left = [name]
    while left:
        found = classes.pop(left.pop(), None)
        if found is None or not _is_plain(found.node):
            return None
        methods.update(_bound(found.node.body))
        for base in map(ast.unparse, found.node.bases):
            first, dot, rest = base.partition(".")
            if found.imported.get(first, first) + dot + rest in _LEARNER:
                methods |= _HAS
            elif base != "object":
                left.append(base.rpartition(".")[2])
    return None if "__getattr__" in methods else frozenset(methods)


def _is_plain(node: ast.ClassDef) -> bool:
    """Whether nothing but its body and its bases gives a class methods."""
    decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return not node.keywords and all(ast.unparse(each) in _DECORATORS for each in decorators)


def _bound(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that the body of a class binds, also in blocks, but not those in methods."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=own):
                yield own or name
            case _:
                yield from _bound(ast.iter_child_nodes(node))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a file imports, with the dotted names that they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"
