"""The exchange job that a bench runs, the seconds of its links, and what a run of it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import flstream
from flstream.job import Job, load_job
from flstream.job.link import NetworkLink
from flstream.job.network_section import LINK_KEYS
from flstream.job.values import render_value
from flstream.simulation.forecasting.fitting import Available
from flstream.simulation.forecasting.forecast import forecast, plain_layout

EXCHANGE = Path(flstream.__file__).parent / "templates" / "exchange" / "job.conf"
"""Job file of the exchange that is measured."""

ROUNDS = 2
"""Rounds of a run. The first one warms up, and the second is measured."""

# A transfer is late only after so many times the seconds that its link takes, and these beside.
_PATIENCE = 4.0
_SPARE_SECONDS = 600.0
# As long as the job file's default, and longer where a link takes longer.
_LEAST_TASK_SECONDS = 3600.0
# About as many tensors as the exchange job's mix has, which matters for the header's size alone.
_TENSORS = 34


@dataclass(frozen=True)
class ExchangedModel:
    """The model that a run moves, and between whom.

    Attributes:
        nbytes: size of the model in bytes.
        tensors: number of tensors of equal size; None for a mix.
        clients: number of clients, each a process.
        network: emulated link of each client; None for the machine's own pace.
    """

    nbytes: int
    tensors: int | None
    clients: int
    network: NetworkLink | None

    @property
    def moved_bytes(self) -> int:
        """Bytes that a round moves in one direction: the model, to or from every client."""
        return self.clients * self.nbytes

    def job(self, chunk_size: int | None, *settings: str) -> Job:
        """Load the exchange job.

        Args:
            chunk_size: maximum frame size in bytes; None for the default.
            settings: further overrides of the job file.
        """
        overrides = [
            f"rounds={ROUNDS}",
            f"clients.count={self.clients}",
            f"clients.parallel={self.clients}",
            f"model.args.size={self.nbytes}",
            *settings,
            *_link_overrides(self.network, self.nbytes),
        ]
        if chunk_size is not None:
            overrides.append(f"streaming.tensor_download_chunk_size={chunk_size}")
        if self.tensors is not None:
            overrides.append(f"model.args.tensors={self.tensors}")
        return load_job(EXCHANGE, overrides)

    def need(self, job: Job) -> Need:
        """Predict the memory and disk that a run of a job with this model needs."""
        found = forecast(job, plain_layout(self.nbytes, self.tensors or _TENSORS))
        return Need(found.total_bytes, found.server_bytes, found.client_bytes, found.disk_bytes)


class LinkSeconds(NamedTuple):
    """Seconds that a link takes at least, without losses.

    Attributes:
        down: seconds for a model to a client.
        up: seconds for an update of it to the server.
    """

    down: float
    up: float


def link_seconds(link: NetworkLink | None, nbytes: int) -> LinkSeconds:
    """Compute the seconds that a link takes for a model in each direction.

    Args:
        link: the link of each client; None for no link, which takes no time.
        nbytes: size of the model in bytes.
    """
    if link is None:
        return LinkSeconds(0.0, 0.0)
    down, up = (8 * nbytes / rate if rate else 0.0 for rate in (link.down, link.up))
    return LinkSeconds(down + link.latency, up + link.latency)


def _link_overrides(link: NetworkLink | None, nbytes: int) -> list[str]:
    """Return the overrides with which a job's sites have a link, and the time that it takes."""
    if link is None:
        return []
    values = {key: getattr(link, key) for key in LINK_KEYS}
    seconds = link_seconds(link, nbytes)
    request = _SPARE_SECONDS + _PATIENCE * max(seconds)
    task = max(_LEAST_TASK_SECONDS, 2 * request)
    return [
        f"network={render_value(values)}",
        f"streaming.streaming_per_request_timeout={request!r}",
        f"clients.round_timeout={task!r}",
    ]


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
