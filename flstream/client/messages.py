"""The messages between the server and a site: what to do, and what came of it.

They travel on a channel of their own, beside the two that carry tensors.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TaskKind = Literal["train", "evaluate"]


class Task(msgspec.Struct, tag=True, frozen=True):
    """Server: fetch the model and train or evaluate it.

    Attributes:
        kind: what to do.
        round: number of the round, from 1.
        total_rounds: rounds in the job.
        ref: token of the model.
        seed: for the random numbers of this site in this round.
    """

    kind: TaskKind
    round: int
    total_rounds: int
    ref: bytes
    seed: int


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Server: there is nothing more to do."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Site: the script has done its imports and called ``init()``."""

    pid: int
    idle_rss: int


class Received(msgspec.Struct, tag=True, frozen=True):
    """Site: the model has arrived, after so many repairs."""

    round: int
    retries: int = 0


class Trained(msgspec.Struct, tag=True, frozen=True):
    """Site: an update is on offer under ``ref`` until it is settled."""

    round: int
    ref: bytes
    weight: float
    params_type: Literal["FULL", "DIFF"]
    framework: Literal["pytorch", "numpy"]
    metrics: dict[str, float]


class Evaluation(msgspec.Struct, tag=True, frozen=True):
    """Site: how the model scored.

    ``has_params`` says that the script answered with a model too, which nobody asked for.
    """

    round: int
    weight: float
    metrics: dict[str, float]
    has_params: bool = False


class Logged(msgspec.Struct, tag=True, frozen=True):
    """Site: the script logged a value."""

    round: int
    key: str
    value: float


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Site: the script cannot go on."""

    reason: str


class Goodbye(msgspec.Struct, tag=True, frozen=True):
    """Site: the script has ended, and this was its peak RSS in bytes."""

    peak_rss: int


ToSite = Task | Stop
FromSite = Ready | Received | Trained | Evaluation | Logged | Failed | Goodbye
