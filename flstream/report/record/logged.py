"""What sites and the workflow of a run logged, from the lines of its journal that count."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from flstream.telemetry.events import SiteLog

# As many values as a chart has columns for, several times. Of more, every other one is left out.
_MOST_VALUES = 4096
# Keys that are made of numbers, such as one a batch, must not fill the memory.
_MOST_KEYS = 64
_MOST_TEXTS = 20
_MOST_CHARACTERS = 500


class LoggedCurve(NamedTuple):
    """Numbers that a site logged under one key, in order.

    Attributes:
        places: step of each; the round where it has none, and parts of a round where that has
            several.
        values: the numbers; NaN for those that are not finite.
    """

    places: Sequence[float]
    values: Sequence[float]


class LoggedNumbers(NamedTuple):
    """Numbers that were logged under one key.

    Attributes:
        key: name of the values.
        has_steps: whether any of them has a step of the site's own.
        curves: by site; the workflow's is the empty name.
    """

    key: str
    has_steps: bool
    curves: Mapping[str, LoggedCurve]


class LoggedText(NamedTuple):
    """Text that was logged, cut off where it is long.

    Attributes:
        key: name of the value.
        site: who logged it; empty for the workflow.
        round: round in which it was logged.
        step: step of the site's own; None without one.
        text: the text.
    """

    key: str
    site: str
    round: int
    step: int | None
    text: str


class LoggedRecord(NamedTuple):
    """All that was logged.

    Attributes:
        numbers: by key, in the order in which the keys first came.
        texts: the last ones, the newest first.
        more_keys: number of keys of numbers that are left out.
        more_texts: number of earlier texts that are left out.
    """

    numbers: Sequence[LoggedNumbers] = ()
    texts: Sequence[LoggedText] = ()
    more_keys: int = 0
    more_texts: int = 0


class LoggedValues:
    """Logged values by key and site, in memory that has a limit for each of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, _Key] = {}
        self._texts: deque[LoggedText] = deque(maxlen=_MOST_TEXTS)
        self._more_keys: set[int] = set()
        self._count = 0

    def add(self, event: SiteLog) -> None:
        """Add a value that counts, in order."""
        if event.text is not None:
            self._count += 1
            text = event.text[: _MOST_CHARACTERS + 1]
            logged = LoggedText(event.key, event.site, event.round, event.step, text)
            self._texts.appendleft(logged)
        elif event.key in self._numbers or len(self._numbers) < _MOST_KEYS:
            self._numbers.setdefault(event.key, _Key()).add(event)
        else:
            self._more_keys.add(hash(event.key))

    @property
    def record(self) -> LoggedRecord:
        """All that was logged so far."""
        return LoggedRecord(
            [numbers.finished(key) for key, numbers in self._numbers.items()],
            [logged._replace(text=_cut(logged.text)) for logged in self._texts],
            len(self._more_keys),
            self._count - len(self._texts),
        )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


class _Key:
    """Numbers under one key."""

    def __init__(self) -> None:
        self._has_steps = False
        self._curves: dict[str, _Thinned] = {}

    def add(self, event: SiteLog) -> None:
        self._has_steps = self._has_steps or event.step is not None
        place = event.round if event.step is None else event.step
        value = math.nan if event.value is None else event.value
        self._curves.setdefault(event.site, _Thinned()).add(place, value)

    def finished(self, key: str) -> LoggedNumbers:
        curves = {site: each.curve for site, each in self._curves.items()}
        if not self._has_steps:
            curves = {site: LoggedCurve(_spread(each[0]), each[1]) for site, each in curves.items()}
        return LoggedNumbers(key, self._has_steps, curves)


class _Thinned:
    """Any number of values in the memory of a few thousand of them."""

    def __init__(self) -> None:
        self._places, self._values = array("d"), array("d")
        self._stride, self._count = 1, 0

    @property
    def curve(self) -> LoggedCurve:
        return LoggedCurve(self._places, self._values)

    def add(self, place: float, value: float) -> None:
        if self._count % self._stride == 0:
            self._places.append(place)
            self._values.append(value)
        self._count += 1
        if len(self._places) > _MOST_VALUES:
            self._places, self._values = self._places[::2], self._values[::2]
            self._stride *= 2


def _spread(rounds: Sequence[float]) -> Sequence[float]:
    """Places of values that have a round alone: the last of a round is at the round itself."""
    found = array("d")
    for number, group in groupby(rounds):
        count = sum(1 for _ in group)
        found.extend(number - 1 + (index + 1) / count for index in range(count))
    return found
