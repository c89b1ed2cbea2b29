"""The emulated link of one site: its rates, its delay, what it loses, and how they change."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from flstream.errors import UsageError
from flstream.job.csv_rows import csv_rows
from flstream.telemetry.events import LinkFacts
from flstream.units import parse_rate, parse_seconds

LEAST_RATE, MOST_RATE = 1e3, 1e12
"""Bits a second that a link may have. Slower ones would be silent for longer than peers wait."""

MOST_SECONDS = 60.0
"""Seconds that a link's latency, and its jitter, may be at most."""

RATE = "a rate from 1 kbit/s to 1 Tbit/s, such as 10 Mbit"
DELAY = f"a duration from 0 to {MOST_SECONDS:g} s, such as 50 ms"
LOSS = "a fraction from 0 to below 1, such as 0.01 or 1%"

_MOST_LOSS = math.nextafter(1.0, 0.0)
_GRAMMAR = (
    "RATE[/RATE][,LATENCY[,JITTER[,LOSS]]], such as 10Mbit,50ms or 10Mbit/100Mbit,50ms,5ms,1%"
)
_COLUMNS = ("site", "seconds", "up", "down", "latency")
# Points that are closer to each other would cost more than they say.
_LEAST_STEP = 1e-3
# So many round trips that not one packet in a thousand million is lost more often in a row.
_UNLIKELY = 1e-9


class TracePoint(NamedTuple):
    """State of a link from some time on.

    Attributes:
        seconds: Seconds since the trace began.
        up: Bits a second that the site can send, 0 for none; None for what the link has otherwise.
        down: Bits a second that it can receive, likewise.
        latency: Seconds that a byte travels; None for what the link has otherwise.
    """

    seconds: float
    up: float | None = None
    down: float | None = None
    latency: float | None = None


@dataclass(frozen=True)
class NetworkLink:
    """The link between a site and all others.

    Attributes:
        up: Bits a second that the site can send; None is without limit.
        down: Bits a second that it can receive; None is without limit.
        latency: Seconds that a byte travels, one way.
        jitter: Seconds that it may travel longer, drawn uniformly.
        loss: Probability that a packet is lost.
        trace: How the link changes, from 0 seconds on; empty if it does not.
    """

    up: float | None = None
    down: float | None = None
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    trace: tuple[TracePoint, ...] = ()

    @property
    def period(self) -> float:
        """Seconds after which the trace begins anew; infinite where it does not.

        The last point holds for as long as the one before it.
        """
        if len(self.trace) < 2:
            return math.inf
        return 2 * self.trace[-1].seconds - self.trace[-2].seconds

    @property
    def silence(self) -> float:
        """Seconds for which nothing may arrive though the peer lives: of questions, and outages."""
        latency = max([self.latency, *(point.latency or 0.0 for point in self.trace)])
        lost = math.ceil(math.log(_UNLIKELY) / math.log(self.loss)) if self.loss else 0
        round_trip = 2 * (latency + self.jitter)
        return round_trip * (1 + 2 * lost) + 2 * self._outage

    @property
    def facts(self) -> LinkFacts:
        """The link in plain numbers, with means over the trace."""
        return LinkFacts(
            up=self._mean(self.up, [point.up for point in self.trace]),
            down=self._mean(self.down, [point.down for point in self.trace]),
            latency=self._mean(self.latency, [point.latency for point in self.trace]) or 0.0,
            jitter=self.jitter,
            loss=self.loss,
        )

    @property
    def _held(self) -> list[float]:
        """Seconds for which each point of the trace holds."""
        starts = [point.seconds for point in self.trace]
        last = self.period if len(self.trace) > 1 else 1.0
        return [after - before for before, after in pairwise([*starts, last])]

    @property
    def _outage(self) -> float:
        """Seconds of the longest time in which one of the rates is 0, over the trace's end, too."""
        longest = now = {"up": 0.0, "down": 0.0}
        for point, seconds in [*zip(self.trace, self._held, strict=True)] * 2:
            now = {way: now[way] + seconds if getattr(point, way) == 0 else 0.0 for way in longest}
            longest = {way: max(longest[way], now[way]) for way in longest}
        return max(longest.values())

    def _mean(self, base: float | None, values: Sequence[float | None]) -> float | None:
        whole = [base if value is None else value for value in values] or [base]
        held = self._held or [1.0]
        if any(value is None for value in whole):
            return None  # without limit at times
        total = sum(value * share for value, share in zip(whole, held, strict=True) if value)
        return total / sum(held)


def parse_link(text: str) -> NetworkLink:
    """Parse a link of a command line, such as ``10Mbit,50ms`` or ``10Mbit/100Mbit,50ms,5ms,1%``.

    Args:
        text: Rate up and down, or the rates up and down with a slash between them; then latency,
            jitter and loss, as far as they are given, with commas between them. A part may be left
            empty: ``,50ms`` limits no rate.

    Raises:
        UsageError: It is no such text; the message says what is wrong, and how to write it.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 4 or not any(parts):
        raise UsageError(f"{text!r} is no link; write {_GRAMMAR}")
    rates, latency, jitter, loss = [*parts, *[""] * (4 - len(parts))]
    up, *rest = re.sub(r"/\s*s\s*(?=/|$)", "", rates, flags=re.IGNORECASE).split("/")
    if len(rest) > 1:
        raise UsageError(f"{rates!r} is no pair of rates; write {_GRAMMAR}")

    def read(part: str, parse: Callable[[str], float]) -> float | None:
        try:
            return parse(part) if part.strip() else None
        except ValueError as error:
            raise UsageError(f"{part!r} in the link {text!r} {error}; write {_GRAMMAR}") from None

    return NetworkLink(
        up=read(up, read_rate),
        down=read(rest[0] if rest else up, read_rate),
        latency=read(latency, read_delay) or 0.0,
        jitter=read(jitter, read_delay) or 0.0,
        loss=read(loss, read_loss) or 0.0,
    )


def read_rate(value: str | int | float) -> float:
    """Return a rate of a link in bits a second, or raise a ValueError that says what is one."""
    rate = parse_rate(value)
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"must be {RATE}")
    return rate


def read_delay(value: str | int | float) -> float:
    """Return a delay of a link in seconds, or raise a ValueError that says what is one."""
    seconds = parse_seconds(value)
    if seconds > MOST_SECONDS:
        raise ValueError(f"must be {DELAY}")
    return seconds


def read_loss(value: str | int | float) -> float:
    """Return a fraction of packets, also of ``1%``, or raise a ValueError that says what is one."""
    text = "" if isinstance(value, bool) else str(value).strip()
    number = text.removesuffix("%").rstrip()
    if not re.fullmatch(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?", number, re.I):
        raise ValueError(f"must be {LOSS}")
    loss = float(number) / 100 if text.endswith("%") else float(number)
    if not 0 <= loss <= _MOST_LOSS:
        raise ValueError(f"must be {LOSS}")
    return loss


def read_traces(path: Path) -> dict[str, tuple[TracePoint, ...]]:
    """Return the traces of a CSV file, by site.

    Args:
        path: Path of the file: the columns site, seconds, and any of up, down and latency.

    Raises:
        ValueError: There is a mistake in it; the message names the file, and the line.
    """
    traces: dict[str, list[TracePoint]] = {}
    for where, cells in csv_rows(path):
        columns = {*cells}
        if not {"site", "seconds"} <= columns <= {*_COLUMNS}:
            raise ValueError(
                f"{path}, line 1: the columns are {', '.join(cells)}; they have to be "
                f"{', '.join(_COLUMNS[:2])}, and any of {', '.join(_COLUMNS[2:])}"
            )
        site = cells["site"]
        if not site:
            raise ValueError(f"{where} the site is missing")
        points = traces.setdefault(site, [])
        point = _point(cells, where)
        if not points and point.seconds:
            raise ValueError(f"{where} the trace of {site} has to begin at 0 seconds")
        if points and point.seconds < points[-1].seconds + _LEAST_STEP:
            raise ValueError(
                f"{where} seconds of {site} is {point.seconds:g} after {points[-1].seconds:g}; "
                "each row has to be at least a millisecond later than the one before"
            )
        points.append(point)
    if not traces:
        raise ValueError(f"{path} has no rows; write one for each site and time")
    for site, points in traces.items():
        for way in ("up", "down"):
            if all(getattr(point, way) == 0 for point in points):
                raise ValueError(f"{path}: {way} of {site} is 0 at all times; give it a rate once")
    return {site: tuple(points) for site, points in traces.items()}


def _point(cells: Mapping[str, str], where: str) -> TracePoint:
    """Return the point of a row; an empty cell leaves to the job file what it stands for."""

    def read(name: str, parse: Callable[[str], float]) -> float | None:
        text = cells.get(name, "")
        try:
            return parse(text) if text else None
        except ValueError as error:
            raise ValueError(f"{where} {name} is {text!r}, and {error}") from None

    seconds = read("seconds", parse_seconds)
    if seconds is None:
        raise ValueError(f"{where} seconds is missing")
    up, down = read("up", _rate_or_none), read("down", _rate_or_none)
    return TracePoint(seconds, up, down, read("latency", read_delay))


def _rate_or_none(text: str) -> float:
    """Return a rate, which may be 0 for a while."""
    rate = parse_rate(text)
    if rate > MOST_RATE or 0 < rate < 1:
        raise ValueError("must be 0, or a rate from 1 bit/s to 1 Tbit/s")
    return rate
