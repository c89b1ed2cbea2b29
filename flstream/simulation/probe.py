"""Check of a job's code and model in a process, for ``flstream validate``.

The process imports what the training code imports at its top level, and measures itself. Then it
calls the factory, first so that tensors have shapes and no bytes. A factory that needs real bytes
is called again.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import psutil

from flstream.engines.child_process import EndedProcessError, ProcessCall
from flstream.engines.preload import import_libraries
from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError, ModelError, UsageError
from flstream.job import Job, JobError, Problem
from flstream.job.code import check, load
from flstream.job.imports import imports_in, missing_modules
from flstream.model.header import parse_header
from flstream.model.layout import Layout
from flstream.simulation.dry_run import outline_programs
from flstream.simulation.forecast import Forecast, Measured, forecast
from flstream.simulation.model_builder import initial_layout
from flstream.simulation.own_code import own_code_problems
from flstream.worker.run_learner import Evaluates, Trains, with_facts
from flstream.worker.user_code import prepare_imports


@dataclass(frozen=True, kw_only=True)
class Probe(Measured):
    """Facts about a job that only its code knows, and its model.

    Attributes:
        header: Header of its initial model's layout.
        differences: Sentence on tensors that its file of weights and its model do not share.
    """

    header: bytes
    differences: str

    @property
    def layout(self) -> Layout:
        """Layout of the initial model."""
        return parse_header(self.header, "the model")[0]


def check_job(job: Job, path: Path) -> tuple[Probe, Forecast]:
    """Check a job's code and model, and forecast its needs.

    Args:
        job: The loaded job.
        path: Path of the job file, for the error message.

    Raises:
        JobError: The code or the model has mistakes; the message lists all of them.
    """
    problems = list(missing_modules(job))
    try:
        with ProcessHost.of(job) as host:
            problems += own_code_problems(job, host)
            measured = probe(job, host)
            programs = [] if problems else outline_programs(job, host)
        if not problems:
            return measured, forecast(job, measured.layout, programs, measured)
    except FlstreamError as error:
        problems.append(Problem("", str(error)))
    raise JobError(path.absolute(), problems)


def probe(job: Job, host: ProcessHost) -> Probe:
    """Find the layout of a job's model.

    Args:
        job: The job.
        host: Host of the process.

    Raises:
        ModelError: The factory failed, or returned something that is not a model, or one that
            cannot be streamed; or the file's tensors are not those of the factory's model.
        CheckpointError: The weights cannot be read.
    """
    try:
        return ProcessCall[Probe](host, "probe", Probe, f"{__name__}:_probed", job).result()
    except EndedProcessError as error:
        factory = f"model.factory {job.model.factory}"
        raise ModelError(f"{factory}: the process that called it {error.how}") from None


def _probed(job: Job) -> Probe:
    prepare_imports(job)
    shared, before = psutil.Process(os.getppid()).memory_info().rss, _private_bytes()
    if job.train.source is not None and job.train.command is None:
        _import_modules_of(job.train.source)
    own = max(_private_bytes() - before, 0)
    for name, section in job.client_code.items():
        if section.learner is not None:
            _check_learner(job, name, section.learner, section.args)
    layout, differences, building = initial_layout(job)
    facts = {**asdict(building), "shared": shared, "own": own}
    return Probe(**facts, header=layout.plain_header[8:], differences=differences)


def _private_bytes() -> int:
    return int(psutil.Process().memory_full_info().uss)


def _import_modules_of(source: Path) -> None:
    """Import a file's top-level imports, without errors."""
    sys.path.insert(0, str(source.parent))
    with suppress(OSError, SyntaxError, ValueError, SystemExit):
        imports = imports_in(ast.parse(source.read_bytes()).body)
        import_libraries([(one.module, one.names) for one in imports if not one.level])


def _check_learner(job: Job, section: str, named: str, args: Mapping[str, Any] | str) -> None:
    where = f"{section}.learner {named}"
    with suppress(ModuleNotFoundError):  # which validate lists by itself
        try:
            learner = load(named)
            check(learner, where, Trains, Evaluates)
            with suppress(ValueError):  # of a class whose signature is not known
                facts = {"sites": job.clients.count, "seed": job.seed}
                named_args = {} if isinstance(args, str) else args  # text is for a script alone
                signature(learner).bind(**with_facts(learner, named_args, facts))
        except (FlstreamError, ModuleNotFoundError):
            raise
        except TypeError as error:
            raise UsageError(f"{where} does not take {section}.args: {error}") from error
        except Exception as error:
            raise UsageError(f"{where}: {type(error).__name__}: {error}") from error
