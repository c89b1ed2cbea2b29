"""Everything a run says of itself: one typed record an event, one line of JSON each.

The live view, the summary and whoever reads ``events.jsonl`` later see the same events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import msgspec

# JSON has no NaN and no infinity: they are written, and read back, as null.
Metrics = Mapping[str, float | None]


class Event(msgspec.Struct, kw_only=True, tag_field="kind"):
    """What happened at a time, in seconds since the epoch."""

    time: float = msgspec.field(default_factory=time.time)


SERVER = "server"
"""The name of the server's process, in events and to its sites."""


class Transfer(msgspec.Struct, frozen=True):
    """What moving bodies one way cost.

    Attributes:
        bytes: bytes of body.
        requests: fetch requests made.
        chunks: frames that carried them.
        retries: requests among them for what had been asked for before and did not arrive sound.
        seconds: from the first request to the last byte.
    """

    bytes: int = 0
    requests: int = 0
    chunks: int = 0
    retries: int = 0
    seconds: float = 0.0

    def __add__(self, other: Transfer) -> Transfer:
        """Both together, one after the other."""
        return Transfer(
            self.bytes + other.bytes,
            self.requests + other.requests,
            self.chunks + other.chunks,
            self.retries + other.retries,
            self.seconds + other.seconds,
        )


class RunStarted(Event, tag="run_started"):
    """A run begins."""

    job: str
    seed: int
    rounds: int
    sites: list[str]
    mode: Literal["pull", "native"]
    chunk_size: int


class ProcessReady(Event, tag="process_ready"):
    """A process has done its imports."""

    process: str
    pid: int
    idle_rss: int


class ProcessEnded(Event, tag="process_ended"):
    """A process is about to end."""

    process: str
    peak_rss: int


class ModelReady(Event, tag="model_ready"):
    """The initial model is on disk."""

    bytes: int
    tensors: int
    digest: str


class RoundStarted(Event, tag="round_started"):
    """Sites were sampled for a round."""

    round: int
    sites: list[str]


class SiteState(Event, tag="site_state"):
    """A site went over to another state: downloading, training, evaluating or ready."""

    round: int
    site: str
    state: Literal["downloading", "training", "evaluating", "ready"]


class SiteUpdate(Event, tag="site_update"):
    """A site has trained and offers its update."""

    round: int
    site: str
    weight: float
    metrics: Metrics


class SiteLog(Event, tag="site_log"):
    """A training script logged a value."""

    round: int
    site: str
    key: str
    value: float | None


class SiteFailed(Event, tag="site_failed"):
    """A site cannot take part any further."""

    round: int
    site: str
    reason: str


class Warned(Event, tag="warned"):
    """Something that is not wrong, but most likely not meant."""

    message: str


class Evaluated(Event, tag="evaluated"):
    """Sites have scored the model that a round ended with."""

    round: int
    metrics: Metrics
    seconds: float
    down: Transfer


class RoundFinished(Event, tag="round_finished"):
    """A round's model is durable on disk.

    Attributes:
        digest: of the model.
        download: seconds until the last site had the model.
        train: seconds from then until the last update was ready.
        upload_and_fold: seconds of the walk over the updates.
        checkpoint: seconds until the new model was durable.
        weights: weight of each site in the mean.
        metrics: what the sites reported with their updates, weighted alike.
        down: transfers of the model to the sites.
        up: transfers of the updates.
    """

    round: int
    digest: str
    download: float
    train: float
    upload_and_fold: float
    checkpoint: float
    weights: dict[str, float]
    metrics: Metrics
    down: Transfer
    up: Transfer


class RunFinished(Event, tag="run_finished"):
    """The run is over: ``finished``, ``failed`` or ``stopped``."""

    status: Literal["finished", "failed", "stopped"]
    error: str = ""


class Progress(Event, tag="progress"):
    """How far the transfers under way are: for the live view alone, not kept.

    Attributes:
        down: bytes of the model that each site has been sent in this phase.
        up: bytes of each site's update that have been folded.
        size: bytes of the model.
    """

    down: dict[str, int]
    up: dict[str, int]
    size: int


AnyEvent = (
    RunStarted
    | ProcessReady
    | ProcessEnded
    | ModelReady
    | RoundStarted
    | SiteState
    | SiteUpdate
    | SiteLog
    | SiteFailed
    | Warned
    | Evaluated
    | RoundFinished
    | RunFinished
    | Progress
)
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode_event(event: AnyEvent) -> bytes:
    """An event as JSON, on one line, without its end."""
    return _encoder.encode(event)


def decode_event(line: bytes) -> AnyEvent:
    """An event from its JSON.

    Raises:
        msgspec.DecodeError: the line is not an event.
    """
    return _decoder.decode(line)


class EventLog:
    """Appends events to a file, a line each, so that what has happened survives a crash."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, event: AnyEvent) -> None:
        """Append one event."""
        self._file.write(encode_event(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
