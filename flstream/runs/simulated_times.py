"""Simulated times of a run's trainings: totals of each site, and bars of some for a timeline."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import msgspec

from flstream.runs.results import FoldResult, NextResult, TrainResult, result_of
from flstream.telemetry.events import EffectDone

DROPPED_OUT, WENT_AWAY = "it dropped out", "it went away"
"""Beginnings of the reasons of sites that left while they had a task."""

Absence = Literal["late", "away", "failed"]
"""Kind of a site's absence: a round did not wait for it, its device left, or it failed."""

OUTCOMES = ("folded", "stale", "not folded", "late", "away", "failed")
"""Outcomes of a training, whose places are those that bars have.

A stale update was folded into a later version of the model than the one after its own.
"""
_FOLDED, _STALE, _NOT_FOLDED, _LATE, _AWAY, _FAILED = range(len(OUTCOMES))

_MOST_SITES, _MOST_BARS, _MOST_FOLDS = 4096, 512, 1024  # even
_MOST_BEGUN = 1 << 14


def absence(reason: str, *, is_late: bool) -> Absence:
    """Return why a site had no part in a round, by the reason and whether that is late."""
    if not is_late:
        return "failed"
    return "away" if reason.startswith((DROPPED_OUT, WENT_AWAY)) else "late"


class TrainingBars:
    """Trainings of a site in their order; of more than 512, bars that stand for several in a row.

    Attributes:
        begins: Nanoseconds since the run began, of each bar's first training.
        lengths: Nanoseconds of all trainings of a bar together.
        outcomes: Place of an outcome, of its first training.
        trainings: Number of trainings of a bar; the last one may have fewer.
    """

    def __init__(self) -> None:
        self.begins = array("q")
        self.lengths = array("q")
        self.outcomes = array("b")
        self.trainings = 1
        self._numbers = array("q")
        self._count = 0

    def add(self, begin: int, length: int, number: int, outcome: int) -> None:
        """Add a training, whose number is above all before."""
        is_new = self._count % self.trainings == 0
        if is_new and len(self.begins) == _MOST_BARS:
            pairs = zip(self.lengths[::2], self.lengths[1::2], strict=True)
            self.lengths = array("q", (one + other for one, other in pairs))
            self.begins, self.outcomes = self.begins[::2], self.outcomes[::2]
            self._numbers = self._numbers[::2]
            self.trainings *= 2
        if is_new:
            self.begins.append(begin)
            self.lengths.append(length)
            self.outcomes.append(outcome)
            self._numbers.append(number)
        else:
            self.lengths[-1] += length
        self._count += 1

    def settle(self, number: int, outcome: int) -> None:
        """Note the outcome of a training that has answered, unless its bar has another's."""
        place = bisect_left(self._numbers, number)
        if place < len(self._numbers) and self._numbers[place] == number:
            self.outcomes[place] = outcome


class SiteTimes(msgspec.Struct):
    """Trainings of a site by the virtual clock.

    Attributes:
        trainings: How often it was asked to train.
        busy: Nanoseconds of all these together.
        stale: How many of its updates were stale when they were folded.
        absences: How often a round did not wait for it, its device left, or it failed.
        bars: The trainings; None for a site beyond the first 4,096.
    """

    trainings: int = 0
    busy: int = 0
    stale: int = 0
    absences: int = 0
    bars: TrainingBars | None = None


class SimulatedTimes:
    """Simulated times of a run, added up from its effects; its memory has a bound for each site.

    Attributes:
        sites: Records of the sites that were asked to train, by name, in that order.
        counts: How many trainings had each outcome.
        now: Nanoseconds since the run began, as of the last effect.
        folds: Times of folds; of many, of each fold of a number.
        folds_apart: This number.
    """

    def __init__(self) -> None:
        self.sites: dict[str, SiteTimes] = {}
        self.counts = [0] * len(OUTCOMES)
        self.now = 0
        self.folds = array("q")
        self.folds_apart = 1
        self._fold_count = 0
        # Of each training by number, the latest ones alone: the version of the model that it began
        # with, and the sites whose updates were not folded yet.
        self._begun: OrderedDict[int, tuple[int, Sequence[str]]] = OrderedDict()

    def apply(self, event: EffectDone) -> None:
        """Add an effect, in the order of the journal."""
        match result_of(event):
            case TrainResult() as train:
                self._add(event.effect, train)
            case NextResult(start, _, train, until):
                self.now = max(self.now, until)
                if train is not None:
                    self._add(start, train)
            case FoldResult() as fold if event.model is not None:
                if fold.train is not None:
                    self._add(event.effect, fold.train)
                self._add_fold(fold, event.model.version)

    def _add(self, number: int, train: TrainResult) -> None:
        self.now = max(self.now, train.ended)
        self._begun[number] = train.base, tuple(train.times)
        if len(self._begun) > _MOST_BEGUN:
            self._begun.popitem(last=False)
        late = frozenset(train.late)
        for name, time in train.times.items():
            outcome = _NOT_FOLDED
            if (reason := train.failures.get(name)) is not None:
                outcome = OUTCOMES.index(absence(reason, is_late=name in late))
            site = self.sites.get(name)
            if site is None:
                bars = TrainingBars() if len(self.sites) < _MOST_SITES else None
                site = self.sites[name] = SiteTimes(bars=bars)
            # A site that is not waited for may be asked anew as soon as the round is over.
            length = min(time, train.ended - train.began)
            site.trainings += 1
            site.busy += length
            site.absences += outcome != _NOT_FOLDED
            self.counts[outcome] += 1
            if site.bars is not None:
                site.bars.add(train.began, length, number, outcome)

    def _add_fold(self, fold: FoldResult, version: int) -> None:
        if self._fold_count % self.folds_apart == 0:
            if len(self.folds) == _MOST_FOLDS:
                self.folds, self.folds_apart = self.folds[::2], 2 * self.folds_apart
            self.folds.append(self.now)
        self._fold_count += 1
        for number, names in fold.updates:
            # A base so old that it is forgotten is not the last.
            base, waiting = self._begun.get(number, (-1, names))
            is_stale, folded = base < version - 1, frozenset(names)
            # An update that is folded again counts once.
            if number in self._begun:
                self._begun[number] = base, [name for name in waiting if name not in folded]
            for name in waiting:
                site = self.sites.get(name)
                if site is None or name not in folded:
                    continue
                outcome = _STALE if is_stale else _FOLDED
                if name in fold.refused:
                    outcome = _FAILED
                site.stale += outcome == _STALE
                site.absences += outcome == _FAILED
                self.counts[outcome] += 1
                self.counts[_NOT_FOLDED] -= 1
                if site.bars is not None:
                    site.bars.settle(number, outcome)
