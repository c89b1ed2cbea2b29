"""Prediction of the memory and disk that a case needs, and whether this machine has them."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.bench.plan import Case, Plan
from flstream.job import Job
from flstream.simulation.forecasting.fitting import Available
from flstream.simulation.forecasting.forecast import Forecast, forecast, plain_layout

# About as many tensors as the exchange job's mix has, which matters for the header's size alone.
_TENSORS = 34


@dataclass(frozen=True)
class Need:
    """Predicted peaks of a run of a case, in bytes.

    Attributes:
        memory: peak memory of all processes together, idle included.
        server: peak memory of the server over its idle.
        client: peak memory of a client over its idle.
        disk: peak size of all files together.
    """

    memory: int
    server: int
    client: int
    disk: int


def fits(need: Need, available: Available) -> bool:
    """Return whether this machine has enough memory and disk for a case."""
    disk = available.disk
    return need.memory <= available.memory and (disk is None or need.disk <= disk)


def need_of(job: Job, model_bytes: int, tensors: int | None, kept_bytes: int) -> Need:
    """Predict the memory and disk that a run of a job needs.

    Args:
        job: the job.
        model_bytes: size of its model in bytes.
        tensors: number of tensors of the model; None for a mix.
        kept_bytes: size in bytes of the files that are kept beside the run.
    """
    need = _forecast(job, model_bytes, tensors)
    disk = need.disk_bytes + kept_bytes
    return Need(need.total_bytes, need.server_bytes, need.client_bytes, disk)


def _forecast(job: Job, model_bytes: int, tensors: int | None) -> Forecast:
    return forecast(job, plain_layout(model_bytes, tensors or _TENSORS))


def predict(plan: Plan, case: Case) -> Need:
    """Predict the memory and disk that a run of a case needs."""
    need = _forecast(plan.job(case), plan.model_bytes, plan.tensors)
    if case.mode != "file":
        return Need(need.total_bytes, need.server_bytes, need.client_bytes, need.disk_bytes)
    # Each client's model is on the disk instead, once, and is changed in place. The process that
    # builds the initial model, before the first round, then takes most memory.
    idle = need.total_bytes - need.server_bytes - plan.clients * need.client_bytes
    client = need.client_bytes - plan.model_bytes
    return Need(
        memory=idle + max(need.server_bytes + plan.clients * client, need.client_bytes),
        server=need.server_bytes,
        client=client,
        disk=need.disk_bytes + plan.moved_bytes,
    )
