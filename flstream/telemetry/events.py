"""Everything a run says of itself: one typed record an event, one line of JSON each.

The live view, the summary and whoever reads ``events.jsonl`` later see the same events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

import msgspec

from flstream.errors import SimulationError
from flstream.telemetry.locks import lock_file

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
    mode: Literal["pull", "push", "native"]
    chunk_size: int


class RunResumed(Event, tag="run_resumed"):
    """The run goes on after an interruption.

    What was written after the last event of ``round`` is void: it is done again.

    Attributes:
        round: the completed round from whose model the run goes on; 0 is the initial model, and
            None says that this has to be built anew.
        warnings: what was not found as it was left.
    """

    round: int | None
    warnings: list[str] = []


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


# How much of the file's end is read at a time, in search of the last whole line.
_TAIL_BYTES = 1 << 16


class EventLog:
    """Appends events to a file, a line each, so that what has happened survives a crash.

    A line that an earlier process was writing when it died is cut off first, so that every line but
    the last is always whole. The file is locked: there is one writer at a time.

    Args:
        path: of the file; it is made if need be.
        patience: seconds to wait for another writer to end.

    Raises:
        SimulationError: another process still writes to the file, or it cannot be written.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        self._path = path
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise self._failed(error) from error
        try:
            if not lock_file(self._file.fileno(), patience):
                raise SimulationError(
                    f"another process still writes to {path}; wait until it has ended, or end it"
                )
            self._end = _end_of_last_line(self._file.fileno())
            self._file.truncate(self._end)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def write(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Append one event.

        Args:
            event: what happened.
            durable: return only when this event, and all before it, would survive a power cut.

        Raises:
            SimulationError: the disk refused it. No part of it is left in the file.
        """
        line = memoryview(encode_event(event) + b"\n")
        size = len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            # Half a line would spoil the next one, and with it the whole journal.
            with suppress(OSError):
                self._file.truncate(self._end)
            raise self._failed(error) from error
        self._end += size

    def close(self) -> None:
        """Close the file, and let others write to it."""
        self._file.close()

    def _failed(self, error: OSError) -> SimulationError:
        return SimulationError(
            f"{self._path} cannot be written: {error.strerror}; put that right, and go on "
            "with --resume"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end_of_last_line(fd: int) -> int:
    """How many bytes of a file are whole lines."""
    stop = os.fstat(fd).st_size
    while stop > 0:
        start = max(stop - _TAIL_BYTES, 0)
        found = os.pread(fd, stop - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        stop = start
    return 0
