"""Results of a run, and of all runs of a contestant."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from contestants import Contestant

COHORT = 100
"""Clients of a round in the race."""


@dataclass(frozen=True)
class Run:
    """One run; seconds and bytes.

    Attributes:
        startup: from the command to the beginning of the first round.
        rounds: each from its beginning to that of the next. The last, which has no next, is not
            among them.
        server_idle: RSS of the server's process after its imports, before it had a model.
        server_peak: the kernel's high-water mark of its RSS.
        peak_pss: the most that all processes together held at one time.
        pss_interval: median of the seconds between two readings of that.
        failure: one line that says why the run does not count, or nothing.
    """

    startup: float
    rounds: tuple[float, ...]
    server_idle: int
    server_peak: int
    peak_pss: int
    pss_interval: float
    failure: str = ""


def failed(why: str) -> Run:
    """Return a run that failed, with the reason."""
    return Run(0.0, (), 0, 0, 0, 0.0, why)


def read_journal(
    path: Path, began: float, peaks: Mapping[int, int], peak_pss: int, pss_interval: float
) -> Run:
    """A run as its journal and the sampler have it.

    Args:
        path: of the journal; see ``adapters/journal.py``.
        began: when the command was given, in seconds since the epoch.
        peaks: high-water marks of RSS in bytes, by pid.
        peak_pss: in bytes.
        pss_interval: seconds between two readings of PSS.
    """
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    idle = [event for event in events if event["event"] == "idle"]
    begun = [event["time"] for event in events if event["event"] == "round"]
    results = [event["wrong"] for event in events if event["event"] == "result"]
    if not results:
        return failed("it ended without a result")
    if results[0]:
        return failed(f"the result is wrong: {results[0]}")
    if len(begun) < 3 or not idle:
        return failed("it did not say when its rounds began")
    server = idle[0]
    return Run(
        startup=begun[0] - began,
        rounds=tuple(later - earlier for earlier, later in pairwise(begun)),
        server_idle=server["rss"],
        server_peak=peaks.get(server["pid"], 0),
        peak_pss=peak_pss,
        pss_interval=pss_interval,
    )


def last_error(log: Path) -> str:
    """Return the line of a log that best explains a failure: the last one that names an error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or [line for line in lines if line] or ["it said nothing"])[-1][:200]


@dataclass(frozen=True)
class Result:
    """All runs of one contestant: medians of those that did not fail.

    The first round of a run does not count: processes still start, and memory is new.
    """

    contestant: Contestant
    runs: Sequence[Run]

    @property
    def good(self) -> list[Run]:
        """Runs that did not fail."""
        return [run for run in self.runs if not run.failure]

    @property
    def startup(self) -> float:
        """Seconds from the command to the first round."""
        return statistics.median(run.startup for run in self.good)

    @property
    def round(self) -> float:
        """Seconds of a steady round."""
        return statistics.median(second for run in self.good for second in run.rounds[1:])

    @property
    def tasks_a_second(self) -> float:
        """Clients that a second of a steady round serves, in the race."""
        return COHORT / self.round

    @property
    def server_over_idle(self) -> float:
        """Bytes of RSS of the server's process at its peak, over idle."""
        return statistics.median(run.server_peak - run.server_idle for run in self.good)

    @property
    def peak_pss(self) -> float:
        """Bytes of all processes together at their peak."""
        return statistics.median(run.peak_pss for run in self.good)

    @property
    def failures(self) -> list[str]:
        """Why runs failed."""
        return [run.failure for run in self.runs if run.failure]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        medians = {
            "startup": self.startup,
            "round": self.round,
            "server_over_idle": self.server_over_idle,
            "peak_pss": self.peak_pss,
        }
        return {
            "name": self.contestant.name,
            "peer": self.contestant.peer,
            "label": self.contestant.label,
            "median": medians if self.good else None,
            "runs": [asdict(run) for run in self.runs],
        }


def best(results: Sequence[Result], peer: str, figure: str) -> float | None:
    """The least of a figure over the settings of a peer, or None if none of them ran."""
    of_peer = [each for each in results if each.contestant.peer == peer and each.good]
    return min((getattr(each, figure) for each in of_peer), default=None)
