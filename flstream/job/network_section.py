"""Emulated links of the sites: as a section, or traces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
)

from flstream.job.clients_section import site_of
from flstream.job.distributions import (
    DELAYS,
    FRACTIONS,
    RATES,
    Delay,
    DrawnDelay,
    DrawnFraction,
    DrawnRate,
    draw,
)
from flstream.job.fields import Allowed, Section, in_unit
from flstream.job.files import TraceRow, Traces, csv_file, read_traces
from flstream.telemetry.events import LinkFacts
from flstream.units import format_bits_exact, parse_rate

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


_LIMITS = {"up": RATES, "down": RATES, "latency": DELAYS, "jitter": DELAYS, "loss": FRACTIONS}


class LinkSection(Section):
    """The link of a site, or of all sites."""

    up: DrawnRate | None = None
    """What a site can send (bits a second: `10 Mbit`, `10 Mbit/s`); null is without limit.

    This and each of the next four keys is a value, or a distribution of which each site draws its
    own, by the job's seed and the site's name: `{ distribution = lognormal, median = 10 Mbit,
    sigma = 0.5 }`, where sigma is the standard deviation of the logarithm, or `{ distribution =
    uniform, low = 5 Mbit, high = 20 Mbit }`.
    """

    down: DrawnRate | None = None
    """What a site can receive (bits a second); null is without limit."""

    latency: DrawnDelay | None = None
    """How long a byte travels, one way (duration); a round trip takes twice as long; null is 0."""

    jitter: DrawnDelay | None = None
    """How much longer it may travel (duration), drawn uniformly; null is 0."""

    loss: DrawnFraction | None = None
    """The fraction of packets (of 1,460 bytes) that are lost (`0.01` or `1%`); null is 0.

    A lost packet is sent again one round trip later, and what comes after it has to wait for it.
    """


def _none_or_a_bit(rate: float) -> float:
    if 0 < rate < 1:
        raise ValueError("")  # the words say all
    return rate


_TraceRate = Annotated[
    float,
    Field(le=RATES[1]),
    AfterValidator(_none_or_a_bit),
    *in_unit(parse_rate, format_bits_exact, "0, or a rate from 1 bit/s to 1 Tbit/s"),
]


class _LinkRow(TraceRow):
    """Row of a file of links that change."""

    up: _TraceRate | None = None
    down: _TraceRate | None = None
    latency: Delay | None = None


def _traces(path: Path) -> Traces[tuple[TracePoint, ...]]:
    """Read a file of traces."""
    sites = {
        site: tuple(TracePoint(row.seconds, row.up, row.down, row.latency) for row in rows)
        for site, rows in read_traces(path, _LinkRow).items()
    }
    for site, points in sites.items():
        for way in ("up", "down"):
            if all(getattr(point, way) == 0 for point in points):
                raise ValueError(f"{path}: {way} of {site} is 0 at all times; give it a rate once")
    return Traces(path, sites)


def _written(links: Mapping[str, LinkSection]) -> dict[str, Any]:
    return {site: link.model_dump(mode="json", exclude_unset=True) for site, link in links.items()}


class NetworkSection(LinkSection):
    """Emulated links of the sites, which pace the traffic of models.

    A site's link is between it and all others. All that the site sends shares `up`, and all that it
    receives shares `down`. Models come out the same, bit for bit. Without any of these keys nothing
    is emulated. docs/network.md says what is emulated and what is not.
    """

    sites: Annotated[
        dict[Annotated[str, AfterValidator(site_of)], LinkSection],
        PlainSerializer(_written, when_used="json"),
        Allowed(f"a section for each site with any of {', '.join(_LIMITS)}"),
    ] = Field(default_factory=dict)
    """The same keys for single sites, in the place of those above: `{ site-1 { up = 1 Mbit } }`."""

    traces: (
        Annotated[
            Any,
            *csv_file(Traces, _traces, "the columns site, seconds, and up, down or latency"),
        ]
        | None
    ) = None
    """A CSV file of how links change: the columns site, seconds, and any of up, down and latency.

    A row holds from its second on, up to the next of its site; the first one is at 0. A trace
    begins anew once its last row has held for as long as the one before. A rate may be 0 for a
    while. An empty cell, and a site that is not in the file, has what the keys above say.
    """

    @property
    def is_on(self) -> bool:
        """Whether links are emulated."""
        keys = (*_LIMITS, "traces")
        return bool(self.sites) or any(getattr(self, key) is not None for key in keys)

    def link(self, site: str, seed: int) -> NetworkLink:
        """Return the link of a site."""
        own, values = self.sites.get(site), dict[str, Any]()
        for key, limits in _LIMITS.items():
            is_own = own is not None and key in own.model_fields_set
            value = getattr(own if is_own else self, key)
            if value is not None:
                values[key] = draw(value, limits, "network", seed, key, site)
        return NetworkLink(**values, trace=self.traces.sites.get(site, ()) if self.traces else ())

    def links(self, sites: Iterable[str], seed: int) -> dict[str, NetworkLink]:
        """Return the links of sites by their names; none where nothing is emulated."""
        return {site: self.link(site, seed) for site in sites} if self.is_on else {}
