"""Modules that a job's training code imports at its top level, and that are not installed."""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from flstream.job.imports import top_level_imports
from flstream.job.job import Job
from flstream.job.problems import Problem

_INSTALL = "install it where flstream is, or put it beside the file"
_HINTS = {
    "nvflare": "set train.alias = nvflare, or write import flstream.client as flare instead, which "
    "has the same functions"
}


def missing_modules(job: Job) -> Iterator[Problem]:
    """Yield a problem for each module that a job's training code needs, and that is not there.

    The code is parsed, and not run. Imports in blocks are left out, since they may be optional.

    Args:
        job: The job.
    """
    key = "train.learner" if job.train.script is None else "train.script"
    if job.train.source is not None:
        yield from _missing_imports(key, job.train.source, job)


def _missing_imports(key: str, path: Path, job: Job) -> Iterator[Problem]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        yield Problem(key, f"{path.name} line {error.lineno}: {error.msg}")
        return
    except (ValueError, OSError) as error:
        yield Problem(key, f"{path}: {error}")
        return
    folders = [str(path.parent), str(job.folder)]
    for line, module, _ in top_level_imports(tree):
        top = module.partition(".")[0]
        is_there = top == job.train.alias or PathFinder.find_spec(top, folders) is not None
        if not (is_there or _is_installed(top)):
            message = f"{path.name} line {line} imports {module}, and there is no module {top}"
            yield Problem(key, message, "", _HINTS.get(top, _INSTALL))


def _is_installed(top: str) -> bool:
    # The lookup of a top-level module runs none of its code.
    return top in sys.modules or importlib.util.find_spec(top) is not None
