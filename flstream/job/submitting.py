"""Whether training code submits models of its own, where a workflow collects them."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

from flstream.job.imports import own_files
from flstream.job.train_section import TrainSection

_TASK = "submit_model"
_NAMES = frozenset({_TASK, "is_submit_model", "TASK_SUBMIT_MODEL"})


def submits_models(train: TrainSection) -> bool:
    """Whether training code answers a task to send a model of the site's own.

    The code is parsed, not run. A script does if it, or a file beside it that it imports, names
    that task or the question for it; a learner, if a class in its file has a method
    ``submit_model``. For other code the last model that the site sent is its answer.

    Args:
        train: The training code.
    """
    if train.script is not None:
        return any(map(_names_the_task, own_files(train.script)))
    where = (train.learner or "").rpartition(":")[0]
    return where.endswith(".py") and any(map(_has_the_method, own_files(Path(where))))


def _names_the_task(path: Path) -> bool:
    return any(map(_is_its_name, _nodes(path)))


def _has_the_method(path: Path) -> bool:
    classes = [node for node in _nodes(path) if isinstance(node, ast.ClassDef)]
    return any(
        isinstance(each, ast.FunctionDef) and each.name == _TASK
        for found in classes
        for each in found.body
    )


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
