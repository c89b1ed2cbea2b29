"""Static check of a job's code: none of it is run.

The rules of the job file have parsed the code already. This check finds mistakes that otherwise
appear only once a run's processes have started.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from flstream.job.client_names import unknown_names
from flstream.job.imports import find_module, own_files, top_level_imports
from flstream.job.job import Job
from flstream.job.kept_variables import kept_variables
from flstream.job.learner_check import lacking_methods
from flstream.job.problems import Problem, did_you_mean

_INSTALL = "install it where flstream is, or put it beside the file"
_PRELOAD = "install it where flstream is, or leave it out"
_HINTS = {
    "nvflare": "set train.alias = nvflare, or write import flstream.client as flare instead, which "
    "has the same functions"
}


def code_problems(job: Job) -> list[Problem]:
    """Return the problems that prevent the import of a job's script, learner or model factory.

    They are code that does not compile, a module that is imported at the top level and is not
    installed, and a name that an installed module or :mod:`flstream.client` does not have. A
    learner that lacks a method which a workflow calls is one, too.

    Args:
        job: The job.
    """
    problems: list[Problem] = []
    if job.train.learner is not None:
        problems += _named(job, "train.learner", job.train.learner)
        problems += lacking_methods(job)
    elif job.train.script is not None:
        problems += _file(job, "train.script", job.train.script)
        for path in own_files(job.train.script, job.folder)[1:]:
            problems += _names("train.script", path, job.train.alias)
        problems += _lost_variables(job)
    for module in job.train.preload:
        if find_module(module) is None:
            problems.append(
                Problem("train.preload", f"there is no installed module {module}", "", _PRELOAD)
            )
    if job.model.factory is not None:
        problems += _named(job, "model.factory", job.model.factory)
    return problems


def _names(key: str, path: Path, alias: str | None) -> Iterator[Problem]:
    """Yield the problems of a file that a script imports; one that does not parse has others."""
    with suppress(OSError, SyntaxError, ValueError):
        yield from unknown_names(key, path, _parsed(path), alias)


def _named(job: Job, key: str, named: str) -> Iterator[Problem]:
    where, _, name = named.rpartition(":")
    if where.endswith(".py"):
        yield from _file(job, key, Path(where))
        return
    spec = find_module(where)
    if spec is None:
        yield Problem(key, f"there is no installed module {where}")
    elif spec.origin is not None and spec.origin.endswith(".py"):
        # The names of a compiled module are known only after its import.
        names = compile(_parsed(Path(spec.origin)), spec.origin, "exec").co_names
        if name not in names and "*" not in names:
            message = f"{where} ({spec.origin}) has no {name!r} at its top level"
            yield Problem(key, message, "", did_you_mean(name, names))


def _is_installed(top: str) -> bool:
    # The lookup of a top-level module runs none of its code.
    return top in sys.modules or importlib.util.find_spec(top) is not None


def _lost_variables(job: Job) -> Iterator[Problem]:
    """Yield a problem where a script of NVFlare's would lose what it keeps from round to round."""
    clients, script = job.clients, job.train.script
    if job.train.alias is None or script is None or clients.workers == clients.count:
        return
    if kept := kept_variables(script):
        allowed = f"{clients.count}, as many as there are clients"
        message = f"{clients.workers} processes for {clients.count} clients"
        reason = f"{script.name} keeps {', '.join(kept)} from round to round, and with fewer "
        yield Problem(
            "clients.parallel", message, allowed, f"{reason}processes it is run anew for each task"
        )


def _file(job: Job, key: str, path: Path) -> Iterator[Problem]:
    alias, folders = job.train.alias, [str(path.parent), str(job.folder)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _parsed(path)
            compile(tree, str(path), "exec")
    except SyntaxError as error:
        yield Problem(key, f"{path} line {error.lineno}: {error.msg}")
        return
    except (ValueError, OSError) as error:
        yield Problem(key, f"{path}: {error}")
        return
    for line, module, _ in top_level_imports(tree):
        top = module.partition(".")[0]
        if top == alias:
            continue
        if PathFinder.find_spec(top, folders) is None and not _is_installed(top):
            message = f"{path.name} line {line} imports {module}, and there is no module {top}"
            yield Problem(key, message, "", _HINTS.get(top, _INSTALL))
    yield from unknown_names(key, path, tree, alias)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))
