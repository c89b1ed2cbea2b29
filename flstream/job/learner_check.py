"""Static check of a learner: whether it has a method for each task of the job's workflows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flstream.job.class_methods import methods_of
from flstream.job.imports import find_module, own_files, parsed
from flstream.job.job import Job
from flstream.job.problems import Problem
from flstream.job.scoring import score_source
from flstream.job.stage import Stage

# The task that each method of a run gives to sites.
_TASKS = {"train": "train", "train_beside": "train", "evaluate": "evaluate", "score": "evaluate"}


class _Asked(NamedTuple):
    """A method that a learner has to have, and why.

    Attributes:
        method: Its name.
        reason: Which workflow calls it, as a clause with the key that says so.
        instead: What to set where it is not to be called; empty where nothing helps.
    """

    method: str
    reason: str
    instead: str = ""


def lacking_methods(job: Job) -> Iterator[Problem]:
    """Yield a problem for each method that a job's learner lacks, though a workflow calls it.

    It is about classes whose code, and that of their base classes, is with the job; of others it is
    not known what they have. Of a workflow of one's own, the calls of methods of its run count.

    Args:
        job: The job.
    """
    if job.train.learner is None:
        return
    where, _, name = job.train.learner.rpartition(":")
    file = _file_of(where)
    methods = None if file is None else methods_of(name, file, job.folder)
    if methods is None:
        return
    shown = f"{Path(where).name}:{name}"
    named: set[str] = set()
    for place, stage in enumerate(job.stages):
        for asked in _asked(job, place, stage):
            if asked.method in methods or asked.method in named:
                continue
            named.add(asked.method)
            message = f"{shown} has no method {asked.method}(self, model), and {asked.reason}"
            hint = f"define it{asked.instead and ', or set '}{asked.instead}"
            yield Problem("train.learner", message, "", hint)


def _asked(job: Job, place: int, stage: Stage) -> Iterator[_Asked]:
    key = f"workflow[{place}]" if len(job.stages) > 1 else "workflow"
    for call in sorted(_calls(stage), key=list(_TASKS).index):
        method = _TASKS[call]
        if call != "evaluate":
            yield _Asked(method, f"{stage.name} calls it ({key}.type)")
        elif stage.args.evaluate_every and score_source(stage.args, job.train) == "task":
            every = f"{key}.args.evaluate_every"
            reason = f"{stage.name} has models evaluated ({every} = {stage.args.evaluate_every})"
            yield _Asked(method, reason, f"{every} = 0")


def _calls(stage: Stage) -> set[str]:
    """Return the methods of :data:`_TASKS` that a workflow calls of its run."""
    where, _, name = stage.program.rpartition(":")
    file = _file_of(where)
    if file is None:
        return set()
    files = own_files(file) if stage.is_own else [file]
    nodes = [node for tree in parsed(files) for node in ast.walk(tree)]
    runs = {
        node.args.args[0].arg
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == name and node.args.args
    }
    found = set()
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=run), attr=call) if run in runs and call in _TASKS:
                found.add(call)
    return found


def _file_of(where: str) -> Path | None:
    """Return the file of a module or of a path; None for a module that is no file of Python's."""
    if where.endswith(".py"):
        return Path(where)
    spec = find_module(where)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)
