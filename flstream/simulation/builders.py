"""The server's calls of processes that build the initial model, or the base that sites share.

These import what the factory may need, which the server does without.
"""

from __future__ import annotations

from collections.abc import Callable

from flstream.engines.child_process import EndedProcessError
from flstream.engines.processes import ProcessHost
from flstream.errors import ResumeRefusedError, SimulationError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.process_call import ProcessCall
from flstream.telemetry.events import BaseReady, ModelReady
from flstream.transport.channel import AbortSignal

MODEL_BUILDER = "model-builder"
BASE_BUILDER = "base-builder"
SHOWN = 12
"""Digits of a base's digest in messages."""


def start_model_builder(
    job: Job, run: RunDirectory, host: ProcessHost, abort: AbortSignal
) -> ProcessCall[ModelReady]:
    """Start the process that builds a job's initial model."""
    target, log = "flstream.simulation.model_builder:build_model", run.log(MODEL_BUILDER)
    call = target, job, run
    return ProcessCall(host, MODEL_BUILDER, ModelReady, *call, log=log, abort=abort)


def await_model(builder: ProcessCall[ModelReady]) -> ModelReady:
    """Wait until the initial model is on disk."""
    try:
        return builder.result()
    except EndedProcessError as error:
        raise SimulationError(
            f"the process that builds the initial model {error.how}; see {MODEL_BUILDER}.log"
        ) from None


def build_base(
    job: Job,
    run: RunDirectory,
    host: ProcessHost,
    abort: AbortSignal,
    on_started: Callable[[str, int], None],
    before: str | None,
) -> BaseReady:
    """Build a job's base in a process, unless its file is there.

    ``before`` is the digest of the base that the run has begun with; None for a new run. Another
    one is refused.
    """
    log, target = run.log(BASE_BUILDER), "flstream.simulation.base_builder:built_here"
    call = ProcessCall[BaseReady](host, BASE_BUILDER, BaseReady, target, job, log=log, abort=abort)
    on_started(BASE_BUILDER, call.pid)
    try:
        base = call.result()
    except EndedProcessError as error:
        raise SimulationError(
            f"the process that builds the base (model.base) {error.how}; see {log.name}"
        ) from None
    if before is not None and before != base.digest:
        raise ResumeRefusedError(
            f"the run in {run.path} has trained on the base {before[:SHOWN]}, and model.base is "
            f"{base.digest[:SHOWN]} now; put back its files, code and versions of libraries, or "
            "leave out --resume to start a new run"
        )
    return base
