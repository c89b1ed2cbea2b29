"""The emulated link of a site: rates, delay, losses, and their changes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from flstream.telemetry.events import LinkFacts

# So many round trips that not one packet in a thousand million is lost more often in a row.
_UNLIKELY = 1e-9


class TracePoint(NamedTuple):
    """State of a link from a time on.

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


class NetworkLink(LinkFacts, frozen=True):
    """The link between a site and all others.

    Attributes:
        trace: How the link changes, from 0 seconds on; empty if it does not.
    """

    trace: tuple[TracePoint, ...] = ()

    def values(self, name: Literal["up", "down", "latency"]) -> list[Any]:
        """Return a quantity at each point of the trace; one value without a trace."""
        usual = getattr(self, name)
        values = [getattr(point, name) for point in self.trace] or [None]
        return [usual if value is None else value for value in values]

    @property
    def period(self) -> float:
        """Seconds after which the trace repeats; infinite without a trace."""
        return self.trace[-1].seconds + self._held[-1] if len(self.trace) > 1 else math.inf

    @property
    def silence(self) -> float:
        """Seconds in which nothing may arrive from a peer that lives."""
        lost = math.ceil(math.log(_UNLIKELY) / math.log(self.loss)) if self.loss else 0
        round_trip: float = 2 * (max(self.values("latency")) + self.jitter)
        return round_trip * (1 + 2 * lost) + 2 * self._outage

    @property
    def facts(self) -> LinkFacts:
        """The link as plain numbers, with means over the trace."""
        latency = self._mean("latency") or 0.0
        return LinkFacts(self._mean("up"), self._mean("down"), latency, self.jitter, self.loss)

    @property
    def _held(self) -> list[float]:
        """Seconds that each point of the trace lasts; the last as long as the one before."""
        seconds = [later.seconds - point.seconds for point, later in pairwise(self.trace)]
        return [*seconds, seconds[-1]] if seconds else [1.0]

    @property
    def _outage(self) -> float:
        """Seconds of the longest outage, across the trace's end, too."""
        longest = 0.0
        for rates in (self.values("up"), self.values("down")):
            outage = 0.0
            for rate, seconds in [*zip(rates, self._held, strict=True)] * 2:
                outage = outage + seconds if rate == 0 else 0.0
                longest = max(longest, outage)
        return longest

    def _mean(self, name: Literal["up", "down", "latency"]) -> float | None:
        values = self.values(name)
        if None in values:
            return None  # without limit at times
        total: float = sum(math.prod(pair) for pair in zip(values, self._held, strict=True))
        return total / sum(self._held)
