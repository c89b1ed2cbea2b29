"""What a worker is told of the run."""

from __future__ import annotations

import msgspec

from flstream.model.memory import Framework
from flstream.streaming.receiver import StreamSettings


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker knows of the run.

    Attributes:
        name: of the worker: its site's, or ``worker-1`` and up.
        site: the site whose own process it is, None if it works for one site after another.
        job: name of the job.
        clients: number of sites in the job.
        rounds: number of rounds.
        seed: of the job.
        sites_folder: where each site has a folder of its own, by its name.
        exchange_format: what training code is handed.
        streaming: how to fetch the model.
        include: patterns of the tensors that are aggregated; see
            :class:`flstream.job.sections.Aggregation`.
        exclude: patterns of those that are not.
    """

    name: str
    site: str | None
    job: str
    clients: int
    rounds: int
    seed: int
    sites_folder: str
    exchange_format: Framework
    streaming: StreamSettings
    include: list[str]
    exclude: list[str]
