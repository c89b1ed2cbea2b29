"""Prediction of the memory and disk that a case needs, and whether this machine has them."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.bench.plan import Case, Plan
from flstream.simulation.forecasting.fitting import Available
from flstream.simulation.forecasting.forecast import forecast, plain_layout

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


def predict(plan: Plan, case: Case) -> Need:
    """Predict the memory and disk that a run of a case needs."""
    layout = plain_layout(plan.model_bytes, plan.tensors or _TENSORS)
    need = forecast(plan.job(case), layout)
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
