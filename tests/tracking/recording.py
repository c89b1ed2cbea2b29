"""A tracker that remembers what it was given, and journals of runs to feed it with."""

import json
from pathlib import Path

from journal_support import run_started

from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunResumed,
    SiteLog,
    SiteUpdate,
    Transfer,
)
from flstream.tracking.feed import TrackerFeed
from flstream.tracking.tracker import TrackedRun

BEGAN = 1_700_000_000.0
MIB = 1 << 20


class Recorder:
    """Remembers points by source, name and step, in the order in which they came."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.points: list[tuple[str, str, int, object]] = []
        self.flushed = 0
        self.is_closed = False

    def scalars(self, source, step, values, time):
        assert not self.is_closed
        self.points += [(source, name, step, value) for name, value in values.items()]

    def text(self, source, step, key, text, time):
        self.points.append((source, key, step, text))

    def flush(self):
        self.flushed = len(self.points)

    def close(self):
        assert not self.is_closed
        self.is_closed = True

    def values(self, source: str, name: str) -> list[tuple[int, object]]:
        return [(p[2], p[3]) for p in self.points if p[:2] == (source, name)]


class Fed:
    """A run directory with a journal that grows, and the trackers that were made for it."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder)
        self.made: list[Recorder] = []
        self.feed = TrackerFeed("job", self.run, self._make)

    @property
    def tracker(self) -> Recorder:
        return self.made[-1]

    def write(self, *events: AnyEvent) -> None:
        with EventLog(self.run.events) as log:
            log.write(*events)

    def write_memory(self, *samples: tuple[float, str, int, int | None]) -> None:
        with self.run.memory.open("a") as file:
            for time, process, rss, pss in samples:
                sample = {"time": BEGAN + time, "process": process, "rss": rss}
                file.write(json.dumps(sample if pss is None else {**sample, "pss": pss}) + "\n")

    def tell(self, *events: AnyEvent) -> None:
        self.write(*events)
        self.feed.catch_up()

    def _make(self, run: TrackedRun) -> Recorder:
        self.made.append(Recorder(run))
        return self.made[-1]


def started() -> list[AnyEvent]:
    return [
        ProcessReady(time=BEGAN, process="server", pid=1, idle_rss=100 * MIB),
        run_started(time=BEGAN, seed=7),
        ProcessReady(time=BEGAN, process="site-1", pid=2, idle_rss=150 * MIB),
        ModelReady(time=BEGAN, bytes=160, tensors=2, digest="initial"),
    ]


def trained(number: int, *sites: str, loss: float = 0.5) -> list[AnyEvent]:
    return [
        RoundStarted(round=number, sites=list(sites)),
        *(SiteUpdate(round=number, site=s, weight=2.0, metrics={"loss": loss}) for s in sites),
    ]


def finished(number: int, time: float = 0.0, loss: float = 0.5) -> RoundFinished:
    return RoundFinished(
        time=BEGAN + time, round=number, digest=f"digest {number}", download=1.0, train=2.0,
        upload_and_fold=3.0, checkpoint=4.0, weights={"site-1": 1.0}, metrics={"loss": loss},
        down=Transfer(bytes=10), up=Transfer(bytes=20),
    )  # fmt: skip


def evaluated(number: int, accuracy: float) -> Evaluated:
    return Evaluated(
        round=number, metrics={"accuracy": accuracy}, seconds=0.5, down=Transfer(bytes=30),
        version=number,
    )  # fmt: skip


def logged(value: float, number: int, site: str = "site-1", **more: object) -> SiteLog:
    return SiteLog(round=number, site=site, key="k", value=value, **more)


def resumed(effect: int, time: float = 0.0) -> RunResumed:
    return RunResumed(time=BEGAN + time, round=effect, effect=effect)
