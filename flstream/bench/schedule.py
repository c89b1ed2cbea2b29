"""How far a bench is, and how long it will take yet.

Seconds are predicted from the bytes that have to move and the rate of the bare pipe; then, as runs
end, from how long they took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Protocol

from flstream.bench.limits import Limits
from flstream.bench.plan import ROUNDS, Case, Mode, Plan

# How many times what the bare pipe takes a round of each mode has been seen to take, on machines
# with few cores. It only has to be good enough for the first minute.
_TIMES_PIPE: dict[Mode, float] = {"pull": 4.0, "push": 3.5, "native": 13.0, "file": 9.0}
# What a run takes besides moving models: starting processes and ending them.
_START_SECONDS = 4.0
# The share of a run from which its own pace says more than what was predicted.
_TELLING = 0.1


class Step(NamedTuple):
    """How far a bench is.

    Attributes:
        text: what it is at.
        number: of the run, from 1; 0 before the first.
        runs: how many there are.
        share: of the whole, from 0 to 1.
        seconds_left: until the end, as far as is known; None while nothing is.
    """

    text: str
    number: int
    runs: int
    share: float
    seconds_left: float | None


class Watcher(Protocol):
    """Who is told how far a bench is. It is called from the thread that measures."""

    def planned(self, runs: int, seconds: float) -> None:
        """Say how many runs there will be, and how long all of them may take."""

    def stepped(self, step: Step) -> None:
        """Say how far it is."""


def expected_seconds(plan: Plan, case: Case, limits: Limits) -> float:
    """How long a run of a case may take, before any has been seen."""
    pipe = median(limits.pipe.values())
    moved = ROUNDS * 2 * plan.moved_bytes * _TIMES_PIPE[case.mode] / pipe
    # The initial model, and one each round.
    kept = (1 + ROUNDS) * plan.model_bytes / limits.disk
    return _START_SECONDS + moved + kept


@dataclass
class Schedule:
    """The runs of a bench, and the time they take.

    Attributes:
        expected: seconds of a run of each case, as predicted.
        runs: the cases in the order in which they are run.
        taken: seconds of the runs that have ended.
    """

    expected: dict[Case, float]
    runs: Sequence[Case]
    taken: list[float] = field(default_factory=list)

    def seconds(self, case: Case) -> float:
        """How long a run of a case takes, as far as is known by now."""
        seen = [taken for taken, each in zip(self.taken, self.runs, strict=False) if each == case]
        return median(seen) if seen else self.expected[case] * self._slowness()

    def drop(self, case: Case) -> None:
        """Leave out the runs of a case that are still to come."""
        done = len(self.taken)
        self.runs = [*self.runs[:done], *(each for each in self.runs[done:] if each != case)]

    def total(self) -> float:
        """Seconds of all runs."""
        return sum(self.taken) + sum(map(self.seconds, self.runs[len(self.taken) :]))

    def left(self, elapsed: float, share: float) -> float:
        """Seconds until the end.

        Args:
            elapsed: since the run under way began.
            share: of it that is done, from 0 to 1.
        """
        done = len(self.taken)
        if done == len(self.runs):
            return 0.0
        whole = self.seconds(self.runs[done])
        if share > _TELLING:
            # The further it is, the more its own pace counts.
            whole = (1 - share) * whole + share * (elapsed / share)
        later = sum(map(self.seconds, self.runs[done + 1 :]))
        return max((1 - share) * whole, 0.0) + later

    def _slowness(self) -> float:
        """By how much the runs so far took longer than was predicted."""
        ratios = [
            taken / self.expected[case] for taken, case in zip(self.taken, self.runs, strict=False)
        ]
        return median(ratios) if ratios else 1.0


class RunShare:
    """How much of a run is done, from the bytes its rounds have moved.

    Args:
        plan: of the bench.
        expected: seconds of the run.
    """

    def __init__(self, plan: Plan, expected: float) -> None:
        self._moved_bytes = plan.moved_bytes
        self._starting = min(_START_SECONDS / expected, 0.9)
        self._began = False
        self._rounds = 0
        self._down = 0
        self._up = 0

    def round_began(self) -> None:
        """A round begins: the processes are there."""
        self._began = True
        self._down = self._up = 0

    def moved(self, down: int, up: int) -> None:
        """So many bytes have been sent to clients, and fetched from them, in this round."""
        self._down, self._up = max(self._down, down), max(self._up, up)

    def round_ended(self) -> None:
        """A round's model is durable."""
        self._rounds += 1
        self._down = self._up = 0

    def share(self, elapsed: float) -> float:
        """From 0 to 1, so many seconds after the run began."""
        if not self._began:
            return self._starting * min(elapsed / _START_SECONDS, 1.0)
        round_share = min((self._down + self._up) / (2 * self._moved_bytes), 1.0)
        moved = min((self._rounds + round_share) / ROUNDS, 1.0)
        return self._starting + (1 - self._starting) * moved
