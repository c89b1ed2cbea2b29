"""Whether training code submits models of its own, where a workflow collects them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from flstream.job.imports import own_files
from flstream.job.train_section import TrainSection

_TASK = "submit_model"
_NAMES = frozenset({_TASK, "is_submit_model", "TASK_SUBMIT_MODEL"})


def submits_models(train: TrainSection) -> bool:
    """Whether training code answers a task to send a model of the site's own.

    The code is parsed, not run. A script does if it, or a file beside it that it imports, names
    that task or the question for it; a learner, if its class, or one that this is derived from in
    these files, has a method ``submit_model``. For other code the last model that the site sent is
    its answer.

    Args:
        train: The training code.
    """
    if train.script is not None:
        return any(map(_names_the_task, own_files(train.script)))
    where, _, name = (train.learner or "").rpartition(":")
    return where.endswith(".py") and _has_the_method(name, own_files(Path(where)))


def _names_the_task(path: Path) -> bool:
    return any(map(_is_its_name, _nodes(path)))


def _has_the_method(name: str, paths: Iterable[Path]) -> bool:
    """Whether a class of some files has the method, of its own or inherited."""
    classes: dict[str, ast.ClassDef] = {}
    for node in chain.from_iterable(map(_nodes, paths)):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
    left = [name]
    while left:
        found = classes.pop(left.pop(), None)
        if found is None:
            continue
        if any(isinstance(each, ast.FunctionDef) and each.name == _TASK for each in found.body):
            return True
        left += [ast.unparse(base).rpartition(".")[2] for base in found.bases]
    return False


def _is_its_name(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _NAMES
        case ast.ImportFrom(names=names):
            return any(each.name in _NAMES for each in names)
        case ast.Constant(value=str(text)):
            return text == _TASK
    return False


def _nodes(path: Path) -> list[ast.AST]:
    with suppress(OSError, SyntaxError, ValueError):
        return list(ast.walk(ast.parse(path.read_bytes())))
    return []
