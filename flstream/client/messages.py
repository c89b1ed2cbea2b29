"""The messages between the server and a worker: what to do, and what came of it.

They travel on a channel of their own, beside the two that carry tensors. What a worker says of a
task is, in this order: ``Received`` once the model is there, ``Failed`` and ``Logged`` as they
happen, and one ``Trained`` or ``Scored``. Each site of the task is either in that answer or in one
``Failed``. A process whose script has raised ends with ``Failed`` and ``Goodbye`` instead.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TaskKind = Literal["train", "evaluate"]


class SiteTask(msgspec.Struct, frozen=True):
    """One site's part of a task: its name, and the seed of its random numbers in this round."""

    site: str
    seed: int


class Task(msgspec.Struct, tag=True, frozen=True):
    """Server: fetch the model, once, and train or evaluate it for one site after another.

    Attributes:
        kind: what to do.
        round: number of the round, from 1.
        total_rounds: rounds in the job.
        ref: token of the model.
        chunk_size: longest frame in bytes in which the update may be pushed.
        sites: one or more. With more than one, each works on a copy of the model, so this is for
            models that are small.
    """

    kind: TaskKind
    round: int
    total_rounds: int
    ref: bytes
    chunk_size: int
    sites: list[SiteTask]


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Server: there is nothing more to do."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Worker: the process has done its imports, and waits for tasks."""

    pid: int
    idle_rss: int


class Began(msgspec.Struct, tag=True, frozen=True):
    """Worker: it is this site's turn. It is said where a task is for several sites."""

    round: int
    site: str


class Received(msgspec.Struct, tag=True, frozen=True):
    """Worker: the model has arrived, after so many repairs."""

    round: int
    retries: int = 0


class TrainedSite(msgspec.Struct, frozen=True):
    """What a site says of its update.

    Attributes:
        site: whose it is.
        weight: its share in the mean, before dividing by the sum of all.
        params_type: whether it has the weights or a difference.
        framework: what the script sent.
        metrics: numbers by name.
        partial: it need not have all tensors of the model.
    """

    site: str
    weight: float
    params_type: Literal["FULL", "DIFF"]
    framework: Literal["pytorch", "numpy"]
    metrics: dict[str, float]
    partial: bool = False


class Trained(msgspec.Struct, tag=True, frozen=True):
    """Worker: the updates of these sites are on offer under ``ref`` until it is settled.

    If the task was for one site, the body has the tensors under their own names. If it was for
    several, they are named ``<index>/<name>`` with the site's place in ``sites``, and tensors that
    the model ties are there once. ``ref`` is empty if ``sites`` is.
    """

    round: int
    ref: bytes
    sites: list[TrainedSite]


class ScoredSite(msgspec.Struct, frozen=True):
    """How the model scored at a site.

    ``has_params`` says that the script answered with a model too, which nobody asked for.
    """

    site: str
    weight: float
    metrics: dict[str, float]
    has_params: bool = False


class Scored(msgspec.Struct, tag=True, frozen=True):
    """Worker: how the model scored at these sites."""

    round: int
    sites: list[ScoredSite]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Worker: a site has failed in a round, and why, in a sentence.

    With no ``site`` it is the process itself that cannot go on, and the round is 0.
    """

    site: str
    round: int
    reason: str


class Logged(msgspec.Struct, tag=True, frozen=True):
    """Worker: a site logged a value; round 0 is before its first task."""

    round: int
    site: str
    key: str
    value: float


class Goodbye(msgspec.Struct, tag=True, frozen=True):
    """Worker: the process ends, and this was its peak RSS in bytes."""

    peak_rss: int


ToWorker = Task | Stop
FromWorker = Ready | Began | Received | Trained | Scored | Failed | Logged | Goodbye
