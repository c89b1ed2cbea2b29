"""What a case will need, worked out before it starts, and whether this machine has it."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.bench.plan import Case, Plan
from flstream.simulator.forecasting.fitting import Available
from flstream.simulator.forecasting.forecast import Forecast, forecast, plain_layout

# How many tensors the exchange job's mix has, about: it counts for the header's size alone.
_TENSORS = 34


@dataclass(frozen=True)
class Need:
    """The most that a case takes, as forecast; all in bytes.

    Attributes:
        memory: of all its processes at one time, with what they have before they begin.
        server: of the server over its idle.
        client: of a client over its idle.
        disk: in files at one time.
    """

    memory: int
    server: int
    client: int
    disk: int


def fits(need: Need, available: Available) -> bool:
    """Whether this machine has enough."""
    disk = available.disk
    return need.memory <= available.memory and (disk is None or need.disk <= disk)


def predict(plan: Plan, case: Case) -> Need:
    """What a case will need."""
    layout = plain_layout(plan.model_bytes, plan.tensors or _TENSORS)
    told: Forecast = forecast(plan.job(case), layout)
    if case.mode != "file":
        return Need(told.total_bytes, told.server_bytes, told.client_bytes, told.disk_bytes)
    # The model of each client lies on the disk instead, once: it is changed where it lies. What
    # takes most is then the process that builds the initial model, before there are any rounds.
    idle = told.total_bytes - told.server_bytes - plan.clients * told.client_bytes
    client = told.client_bytes - plan.model_bytes
    return Need(
        memory=idle + max(told.server_bytes + plan.clients * client, told.client_bytes),
        server=told.server_bytes,
        client=client,
        disk=told.disk_bytes + plan.moved_bytes,
    )
