"""Everything a run says of itself: one typed record an event, one line of JSON each.

The live view, the summary and whoever reads ``events.jsonl`` later see the same events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

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
    """A run begins.

    Attributes:
        clients: how many sites there are: ``site-1`` and up. 0 where an earlier version wrote the
            event, which listed their names.
        workers: the processes that share the sites; none where each site has one of its own.
    """

    job: str
    seed: int
    rounds: int
    mode: Literal["pull", "push", "native"]
    chunk_size: int
    clients: int = 0
    workers: list[str] = []

    @property
    def sites(self) -> list[str]:
        """The sites' names, in their fixed order."""
        return [f"site-{number}" for number in range(1, self.clients + 1)]


class RunResumed(Event, tag="run_resumed"):
    """The run goes on after an interruption.

    What was written after the last event of ``round`` is void: it is done again.

    Attributes:
        round: the completed round from whose model the run goes on; 0 is the initial model, and
            None says that this has to be built anew.
        warnings: what was not found as it was left.
        evaluated: whether an evaluation of that model counts, if there is one. One that was made
            because the round was the last does not once the job has more rounds.
    """

    round: int | None
    warnings: list[str] = []
    evaluated: bool = True


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
    """A site has no part in a round, and why.

    Attributes:
        late: it was merely not waited for any longer.
    """

    round: int
    site: str
    reason: str
    late: bool = False


class SiteBenched(Event, tag="site_benched"):
    """A site that keeps failing is asked no more."""

    round: int
    site: str
    failures: int


class EndedEarly(Event, tag="ended_early"):
    """The job has trained enough before its last round, and why."""

    round: int
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
        optimizer_state: digest of what the server's optimizer remembers; empty without one.
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
    optimizer_state: str = ""

    @property
    def phases(self) -> tuple[float, float, float, float]:
        """Seconds of download, training, upload and fold, and checkpoint."""
        return (self.download, self.train, self.upload_and_fold, self.checkpoint)


class RunFinished(Event, tag="run_finished"):
    """The run is over: ``finished``, ``failed`` or ``stopped``."""

    status: Literal["finished", "failed", "stopped"]
    error: str = ""


class Work(msgspec.Struct, frozen=True):
    """What a worker that sites share is doing.

    Attributes:
        site: whose turn it is of the sites that it deals with.
        over: how many of them have had theirs.
        sites: how many there are.
        since: when the turn began, in seconds since the epoch.
        down: bytes of the model that it has been sent for them.
    """

    state: Literal["downloading", "training", "evaluating"]
    site: str
    over: int
    sites: int
    since: float
    down: int


class Progress(Event, tag="progress"):
    """How far the task under way is: for the live view alone, not kept.

    Attributes:
        down: bytes of the model that each site has been sent in this phase.
        up: bytes of each site's update that have been folded.
        size: bytes of the model.
        sent: bytes of the model that workers have been sent for the task.
        answered: how many sites have answered.
        folded: bytes of the model that the walk under way over updates has done.
        workers: what each does of those that sites share; a worker that waits is not there.
    """

    down: dict[str, int]
    up: dict[str, int]
    size: int
    sent: int = 0
    answered: int = 0
    folded: int = 0
    workers: dict[str, Work] = {}


AnyEvent = (
    RunStarted
    | RunResumed
    | ProcessReady
    | ProcessEnded
    | ModelReady
    | RoundStarted
    | SiteState
    | SiteUpdate
    | SiteLog
    | SiteFailed
    | SiteBenched
    | EndedEarly
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


# What any event may take: well above what a message may, such as one with a site's thousands of
# metrics. And what a site adds to a round's events: its name, its weight, and a mark or two.
_EVENT_BYTES = 64 << 20
_SITE_BYTES = 64


def most_line_bytes(clients: int) -> int:
    """How long a line of the journal of a run with so many sites may be.

    So a reader can tell a file that is no journal before it has the whole of it in memory. Only an
    event of a round whose cohort is that large comes near.
    """
    return _EVENT_BYTES + _SITE_BYTES * clients
