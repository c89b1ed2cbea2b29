"""How models are scored: by tasks of their own, or by what sites send with their updates."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import Literal

from flstream.job.imports import own_files
from flstream.job.train_section import TrainSection
from flstream.job.workflow_args import WorkflowArgs

ScoreSource = Literal["task", "received"]
"""``task``: sites are asked to evaluate a model. ``received``: metrics that come with an update
score the model that the site had received, as in NVFlare."""

# What a script asks for that tells its tasks apart. The last is what task names are compared with.
_QUESTIONS = frozenset({"is_evaluate", "is_train", "get_task_name", "is_submit_model", "evaluate"})


def score_source(args: WorkflowArgs, train: TrainSection) -> ScoreSource:
    """Where the scores of a workflow's models come from.

    Args:
        args: Arguments of the workflow; their ``evaluate`` says it, or is ``auto``.
        train: The training code. A learner has methods for both kinds of tasks; a script that
            nowhere asks which kind it was given would train once more in an evaluation.
    """
    if args.evaluate != "auto":
        return args.evaluate
    if train.script is None or tells_tasks_apart(train.script):
        return "task"
    return "received"


def tells_tasks_apart(script: Path) -> bool:
    """Whether a script, or a file beside it that it imports, asks which kind of task it was given.

    The code is parsed, not run: a name of the client API counts wherever it is looked up, called or
    imported, and so does a string that is one, a decorator named ``evaluate``, and what looks for
    ``task`` in a model's ``meta``.
    """
    for path in own_files(script):
        with suppress(OSError, SyntaxError, ValueError):
            if any(map(_asks, ast.walk(ast.parse(path.read_bytes())))):
                return True
    return False


def _asks(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name) if name != "evaluate":
            return name in _QUESTIONS
        case ast.ImportFrom(module=str(module), names=aliases) if "client" in module.split("."):
            return any(alias.name in _QUESTIONS for alias in aliases)
        case ast.Call(func=ast.Name(id=name)):  # as a star import gives it
            return name in _QUESTIONS - {"evaluate"}
        case ast.Constant(value=str(text)):
            return text in _QUESTIONS
        case ast.Subscript(value=ast.Attribute(attr="meta"), slice=ast.Constant(value="task")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="meta"), attr="get"), args=args):
            return bool(args) and isinstance(args[0], ast.Constant) and args[0].value == "task"
        case ast.FunctionDef(decorator_list=decorators):
            return any(map(_is_evaluate, decorators))
        case ast.AsyncFunctionDef(decorator_list=decorators):
            return any(map(_is_evaluate, decorators))
    return False


def _is_evaluate(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    name = decorator.attr if isinstance(decorator, ast.Attribute) else ast.unparse(decorator)
    return name == "evaluate"
