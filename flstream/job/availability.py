"""When a site is there: daily windows, traces, or periods of random length."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    Discriminator,
    Field,
    PlainValidator,
    PrivateAttr,
    Tag,
    model_validator,
)

from flstream.job.device import NANOSECONDS, Availability, nanoseconds
from flstream.job.distributions import number_of
from flstream.job.fields import NOT_EMPTY, Allowed, Seconds, Section, Whole, in_unit
from flstream.job.files import TraceRow, Traces, csv_file, read_traces
from flstream.job.problems import Problem, RefusedValueError
from flstream.units import format_seconds_exact, parse_seconds

_WINDOW = re.compile(r"(\d{1,4}):([0-5]\d)(?::([0-5]\d))?")
_PARTS = 1_000_000


class RecurringPeriods(NamedTuple):
    """Periods in which a site is there, which repeat; times are nanoseconds.

    Attributes:
        length: Time after which they repeat.
        starts: Begins of the periods, ascending, from 0.
        ends: Ends of the periods, before the next begin, at most the length.
        shift: Time by which the site is ahead of them.
    """

    length: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    shift: int = 0

    def next_there(self, now: int) -> int:
        """Return the first time from ``now`` on within a period."""
        turn, time = divmod(now + self.shift, self.length)
        place = bisect_right(self.ends, time)
        if place == len(self.ends):
            turn, place = turn + 1, 0
        return max(now, turn * self.length + self.starts[place] - self.shift)

    def next_gone(self, now: int) -> int | None:
        """Return the first time after ``now`` within no period."""
        turn, time = divmod(now + 1 + self.shift, self.length)
        place = bisect_right(self.ends, time)
        if place == len(self.ends) or time < self.starts[place]:
            return now + 1
        end = self.ends[place]
        if end == self.length and self.starts[0] == 0:
            end += self.ends[0]
        return turn * self.length + end - self.shift


def _recurring(length: int, periods: Iterable[tuple[int, int]]) -> RecurringPeriods | None:
    """Return periods from any that touch or overlap; None for all the time."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(periods):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    if joined == [(0, length)]:
        return None
    starts, ends = zip(*joined, strict=True)
    return RecurringPeriods(length, starts, ends)


class AlternatingPeriods:
    """A site's periods of random length, which it is there and gone for in turn.

    The length of each follows from its number. Only those at the last time that was asked for are
    kept; an earlier time is found again from the beginning.
    """

    def __init__(self, seed: int, site: str, up_for: int, down_for: int) -> None:
        self._seed, self._site, self._up_for, self._down_for = seed, site, up_for, down_for
        self._begin(0, 0)

    def next_there(self, now: int) -> int:
        """Return the first time from ``now`` on at which the site is there."""
        self._find(now)
        return now if now < self._gone else self._back

    def next_gone(self, now: int) -> int | None:
        """Return the first time after ``now`` at which it is not there."""
        self._find(now + 1)
        return max(now + 1, self._gone)

    def _find(self, now: int) -> None:
        if now < self._start:
            self._begin(0, 0)
        while now >= self._back:
            self._begin(self._number + 1, self._back)

    def _begin(self, number: int, start: int) -> None:
        self._number, self._start = number, start
        self._gone = start + self._drawn("up", self._up_for)
        self._back = self._gone + self._drawn("down", self._down_for)

    def _drawn(self, way: str, mean: int) -> int:
        """Draw the length of a period from the exponential distribution of a mean."""
        # In millionths of the mean, as logarithms of two libraries may differ in the last bit.
        number = number_of("devices", self._seed, f"available/{way}/{self._number}", self._site)
        parts = round(-math.log(number) * _PARTS)
        return max(1, parts * mean // _PARTS)


def _window(text: str) -> tuple[int, int]:
    """Return begin and end of a window in nanoseconds of the day."""
    begin, _, end = text.replace(" ", "").partition("-")
    times = [_WINDOW.fullmatch(part) for part in (begin, end)]
    if None in times:
        raise ValueError("")  # the words say all
    first, last = (
        NANOSECONDS * (3600 * int(time[1]) + 60 * int(time[2]) + int(time[3] or 0))
        for time in times
        if time is not None
    )
    if first == last:
        raise ValueError(f"{text} begins when it ends")
    return first, last


def _sound_window(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("")
    _window(text)
    return text


class DailySection(Section):
    """Daily windows in which a site is there."""

    windows: Annotated[
        list[Annotated[str, PlainValidator(_sound_window)]],
        NOT_EMPTY,
        Allowed('a list of windows of the day, such as ["20:00-08:00"]', ("array",)),
    ]
    day: Seconds = 86400.0
    spread: Annotated[
        float,
        Field(ge=0, le=1e10),
        *in_unit(parse_seconds, format_seconds_exact, "a duration, such as 2 h"),
    ] = 0.0

    _periods: RecurringPeriods | None = PrivateAttr(None)
    """Those of a site that is neither early nor late; None for always."""

    @model_validator(mode="after")
    def _within_the_day(self) -> Self:
        day, periods = nanoseconds(self.day), list[tuple[int, int]]()
        for begin, end in map(_window, self.windows):
            if max(begin, end) > day:
                allowed = f"within the day, which has {format_seconds_exact(self.day)}"
                raise RefusedValueError(Problem("windows", "", allowed))
            over_midnight = [(0, end), (begin, day)]
            periods += [(begin, end)] if begin < end else over_midnight
        self._periods = _recurring(day, (period for period in periods if period[0] < period[1]))
        return self

    def availability(self, seed: int, site: str) -> Availability | None:
        """Return a site's windows, shifted by up to ``spread`` either way; None for always."""
        if self._periods is None or not self.spread:
            return self._periods
        number = number_of("devices", seed, "available", site)
        shift = round((2 * number - 1) * nanoseconds(self.spread))
        return self._periods._replace(shift=shift)


class AlternatingSection(Section):
    """Periods of random length that a site is there and gone for, in turn."""

    up_for: Annotated[Seconds, Field(ge=1e-3)]
    down_for: Annotated[Seconds, Field(ge=1e-3)]
    distribution: Literal["exponential"] = "exponential"

    def availability(self, seed: int, site: str) -> Availability:
        """Return a site's periods, of which the first begins with the run."""
        return AlternatingPeriods(seed, site, nanoseconds(self.up_for), nanoseconds(self.down_for))


class AvailabilityTraces(Traces[RecurringPeriods | None]):
    """Periods in which sites are there, by the site; None for always."""

    def availability(self, seed: int, site: str) -> Availability | None:
        """Return a site's periods; a site that is not in the file is always there."""
        return self.sites.get(site)


class _AvailabilityRow(TraceRow):
    available: Annotated[Whole, Field(ge=0, le=1)]


def _traces(path: Path) -> AvailabilityTraces:
    """Read a file of traces."""
    sites = {}
    for site, rows in read_traces(path, _AvailabilityRow).items():
        if not any(row.available for row in rows):
            raise ValueError(f"{path}: available of {site} is 0 at all times; give it a 1 once")
        # The last row holds for as long as the one before.
        times = [nanoseconds(row.seconds) for row in rows]
        times.append(2 * times[-1] - times[-2] if len(times) > 1 else NANOSECONDS)
        periods = [pair for row, pair in zip(rows, pairwise(times), strict=True) if row.available]
        sites[site] = _recurring(times[-1], periods)
    return AvailabilityTraces(path, sites)


def _kind(value: Any) -> str:
    match value:
        case DailySection():
            return "daily"
        case AlternatingSection():
            return "alternating"
        case Mapping():
            return "alternating" if {"up_for", "down_for", "distribution"} & {*value} else "daily"
    return "traces"


Available = Annotated[
    Annotated[DailySection, Tag("daily")]
    | Annotated[AlternatingSection, Tag("alternating")]
    | Annotated[
        Any,
        *csv_file(AvailabilityTraces, _traces, "the columns site, seconds and available"),
        Tag("traces"),
    ],
    Discriminator(_kind),
]
"""Windows, periods of random length, or a file of traces."""
