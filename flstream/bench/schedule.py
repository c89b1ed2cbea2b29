"""Progress of a bench, and the time that is left.

Times are predicted from the bytes to be moved and the rate of the bare pipe at first, and from the
runs that have ended later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, NamedTuple, Protocol, TypeVar

from flstream.bench.exchange import ROUNDS
from flstream.telemetry.events import AnyEvent, Progress, RoundFinished, RoundStarted

START_SECONDS = 4.0
"""Time of a run for starting and ending processes."""

# The share of a run from which on its own pace enters the prediction.
_PACE_SHARE = 0.1


CaseT = TypeVar("CaseT")


class Step(NamedTuple):
    """Progress of a bench.

    Attributes:
        text: description of the current step.
        number: number of the current run, from 1; 0 before the first.
        runs: number of runs of the bench.
        share: share of the bench that is done, from 0 to 1.
        seconds_left: predicted seconds until the end; None if not known yet.
    """

    text: str
    number: int
    runs: int
    share: float
    seconds_left: float | None


class Watcher(Protocol):
    """Receiver of a bench's progress, called from the thread that measures."""

    def planned(self, runs: int, seconds: float) -> None:
        """Handle the plan: the number of runs, and the predicted seconds of all of them."""

    def stepped(self, step: Step) -> None:
        """Handle progress."""


@dataclass
class Schedule(Generic[CaseT]):
    """The runs of a bench and their times.

    Attributes:
        expected: predicted seconds of a run, by case.
        runs: cases of all runs, in order.
        taken: measured seconds of the runs that have ended, in order.
    """

    expected: dict[CaseT, float]
    runs: Sequence[CaseT]
    taken: list[float] = field(default_factory=list)

    def seconds(self, case: CaseT) -> float:
        """Return the seconds of a run of a case, measured if there are runs, else predicted."""
        seen = [taken for taken, each in zip(self.taken, self.runs, strict=False) if each == case]
        return median(seen) if seen else self.expected[case] * self._slowness()

    def drop(self, case: CaseT) -> None:
        """Remove the remaining runs of a case."""
        done = len(self.taken)
        self.runs = [*self.runs[:done], *(each for each in self.runs[done:] if each != case)]

    def total(self) -> float:
        """Return the seconds of all runs, measured and predicted."""
        return sum(self.taken) + sum(map(self.seconds, self.runs[len(self.taken) :]))

    def left(self, elapsed: float, share: float) -> float:
        """Predict the seconds until the end of the bench.

        Args:
            elapsed: seconds since the current run began.
            share: share of the current run that is done, from 0 to 1.
        """
        done = len(self.taken)
        if done == len(self.runs):
            return 0.0
        whole = self.seconds(self.runs[done])
        if share > _PACE_SHARE:
            # The weight of the run's own pace grows with its progress.
            whole = (1 - share) * whole + share * (elapsed / share)
        later = sum(map(self.seconds, self.runs[done + 1 :]))
        return max((1 - share) * whole, 0.0) + later

    def step(self, text: str, elapsed: float, share: float) -> Step:
        """Return the progress of the bench.

        Args:
            text: description of the current step.
            elapsed: seconds since the current run began.
            share: share of the current run that is done, from 0 to 1.
        """
        total = self.total()
        left = self.left(elapsed, share)
        done = sum(self.taken) + elapsed
        number = min(len(self.taken) + 1, len(self.runs))
        return Step(text, number, len(self.runs), done / (done + left) if total else 1.0, left)

    def _slowness(self) -> float:
        """Return the median ratio of measured to predicted seconds; 1 before any run has ended."""
        ratios = [
            taken / self.expected[case] for taken, case in zip(self.taken, self.runs, strict=False)
        ]
        return median(ratios) if ratios else 1.0


class RunShare:
    """Share of a run that is done, computed from the bytes that its rounds have moved.

    Args:
        moved_bytes: bytes that a round moves in one direction.
        expected: predicted seconds of the run.
        down_part: part of a round's seconds in which the model goes down, from 0 to 1.
    """

    def __init__(self, moved_bytes: int, expected: float, down_part: float = 0.5) -> None:
        self._moved_bytes = moved_bytes
        self._down_part = down_part
        self._starting = min(START_SECONDS / expected, 0.9)
        self._began = False
        self._rounds = 0
        self._down = 0
        self._up = 0

    def apply(self, event: AnyEvent) -> None:
        """Handle an event of the run, in the order in which they happen."""
        match event:
            case RoundStarted():  # for which all processes have started
                self._began = True
                self._down = self._up = 0
            case Progress():
                self._down = max(self._down, sum(event.down.values()))
                self._up = max(self._up, sum(event.up.values()))
            case RoundFinished():
                self._rounds += 1
                self._down = self._up = 0

    def share(self, elapsed: float) -> float:
        """Return the share of the run that is done, from 0 to 1.

        Args:
            elapsed: seconds since the run began.
        """
        if not self._began:
            return self._starting * min(elapsed / START_SECONDS, 1.0)
        down, up = (min(each / self._moved_bytes, 1.0) for each in (self._down, self._up))
        round_share = self._down_part * down + (1 - self._down_part) * up
        moved = min((self._rounds + round_share) / ROUNDS, 1.0)
        return self._starting + (1 - self._starting) * moved
