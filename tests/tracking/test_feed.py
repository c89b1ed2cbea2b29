"""A tracker is given every point that counts once, from a journal that is cut off at any place."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from journal_support import evaluated, folded, round_finished, run_started

from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    AnyEvent,
    ModelReady,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunResumed,
    SiteLog,
    SiteUpdate,
    encode_lines,
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

    def write_memory(self, *samples: tuple[float, str, int]) -> None:
        with self.run.memory.open("a") as file:
            for time, process, rss in samples:
                sample = {"time": BEGAN + time, "process": process, "rss": rss}
                file.write(json.dumps(sample) + "\n")

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


def finished(number: int, time: float = 0.0) -> RoundFinished:
    return round_finished(number, time=BEGAN + time)


EVALUATED = evaluated(1, 0.75)


def logged(value: float, number: int, site: str = "site-1", **more: object) -> SiteLog:
    return SiteLog(round=number, site=site, key="k", value=value, **more)


@pytest.fixture
def fed(tmp_path):
    fed = Fed(tmp_path)
    fed.write()
    return fed


def test_a_run_is_told_of_as_it_goes_on(fed):
    fed.feed.catch_up()
    assert fed.made == []
    fed.tell(*started())
    assert fed.tracker.run == ("job", fed.run.path, BEGAN)
    update = SiteUpdate(round=1, site="site-1", weight=2.0, metrics={"loss": 0.5})
    fed.tell(RoundStarted(round=1, sites=["site-1"]), update, update)
    assert fed.tracker.values("site-1", "train/loss") == [(1, 0.5)]
    assert fed.tracker.values("site-1", "weight") == [(1, 2.0)]
    assert fed.tracker.flushed == 2
    fed.tell(folded(1), EVALUATED, finished(1))
    found = {name: value for source, name, step, value in fed.tracker.points if source == "global"}
    assert found == {
        "accuracy": 0.75, "seconds/evaluate": 0.25, "bytes/evaluate": 7.0, "train/loss": 0.5,
        "seconds/download": 1.0, "seconds/train": 2.0, "seconds/upload_and_fold": 3.0,
        "seconds/checkpoint": 4.0, "bytes/down": 10.0, "bytes/up": 20.0,
    }  # fmt: skip
    fed.tell(msgspec.structs.replace(EVALUATED, site_metrics={"accuracy": 0.5}))
    assert fed.tracker.values("global", "sites/accuracy") == [(1, 0.5)]
    fed.feed.close()
    assert len(fed.made) == 1
    assert fed.tracker.is_closed


def test_values_are_at_their_step_or_else_at_the_round(fed):
    text = SiteLog(round=2, site="site-1", key="note", value=None, text="hello")
    fed.tell(*started(), logged(1.0, 2), logged(2.0, 2, step=40), text, logged(3.0, 2, site=""))
    assert fed.tracker.values("site-1", "k") == [(2, 1.0), (40, 2.0)]
    assert fed.tracker.values("site-1", "note") == [(2, "hello")]
    assert fed.tracker.values("global", "k") == [(2, 3.0)]
    fed.tell(logged(math.inf, 3))
    assert math.isnan(fed.tracker.values("site-1", "k")[-1][1])


def test_a_torn_last_line_is_left_for_later_and_a_damaged_one_an_error(fed):
    fed.write(*started())
    line = encode_lines([logged(1.0, 1)])
    with fed.run.events.open("ab") as file:
        file.write(line[:50])
    fed.feed.catch_up()
    assert fed.tracker.points == []
    with fed.run.events.open("ab") as file:
        file.write(line[50:])
    fed.feed.catch_up()
    assert fed.tracker.values("site-1", "k") == [(1, 1.0)]
    with fed.run.events.open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(ValueError, match="JSON"):
        fed.feed.catch_up()


def test_memory_is_the_highest_of_each_round(fed):
    fed.write(*started())
    fed.write_memory(
        (1.0, "server", 110 * MIB), (1.0, "site-1", 170 * MIB),
        (2.0, "server", 120 * MIB), (2.0, "site-1", 160 * MIB),
    )  # fmt: skip
    fed.tell(folded(1), finished(1, time=2.5))
    assert fed.tracker.values("site-1", "memory/over_idle") == []  # there may be more samples
    fed.write_memory((3.0, "server", 105 * MIB), (3.0, "site-1", 150 * MIB))
    fed.feed.catch_up()
    assert fed.tracker.values("global", "memory/server_over_idle") == [(1, 20.0 * MIB)]
    assert fed.tracker.values("site-1", "memory/over_idle") == [(1, 20.0 * MIB)]
    fed.tell(folded(2), finished(2, time=3.5))
    fed.feed.close()
    assert fed.tracker.values("global", "memory/server_over_idle")[1:] == [(2, 5.0 * MIB)]
    assert fed.tracker.values("site-1", "memory/over_idle")[1:] == [(2, 0.0)]


def test_memory_of_what_is_void_belongs_to_no_round(fed):
    fed.write(
        *started(),
        RunResumed(time=BEGAN + 2.0, round=0, effect=0),
        folded(1),
        finished(1, time=4.0),
    )
    fed.write_memory((1.0, "server", 900 * MIB), (3.0, "server", 101 * MIB))
    fed.feed.close()
    assert fed.tracker.values("global", "memory/server_over_idle") == [(1, 1.0 * MIB)]
