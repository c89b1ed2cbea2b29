"""Emulated links of the sites: as a section, a command line's text, or traces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from flstream.errors import UsageError
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
from flstream.job.files import csv_path
from flstream.job.keys import explain
from flstream.job.link import NetworkLink, TracePoint
from flstream.job.site_names import site_of
from flstream.job.traces import TraceRow, Traces, read_traces
from flstream.units import format_bits_exact, parse_rate

_GRAMMAR = (
    "RATE[/RATE][,LATENCY[,JITTER[,LOSS]]], such as 10Mbit,50ms or 10Mbit/100Mbit,50ms,5ms,1%"
)
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


def _traces(value: Any, info: ValidationInfo) -> Traces[tuple[TracePoint, ...]]:
    """Read a file of traces."""
    if isinstance(value, Traces):
        return value
    path = csv_path(value, info)
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
            PlainValidator(_traces),
            PlainSerializer(lambda traces: str(traces.path), when_used="json"),
            Allowed(
                "the path of a CSV file with the columns site, seconds, and up, down or latency"
            ),
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


def parse_link(text: str) -> NetworkLink:
    """Parse a command line's link, ``10Mbit,50ms`` or ``10Mbit/100Mbit,50ms,5ms,1%``.

    Args:
        text: Rate up and down, or the rates up and down with a slash between them; then latency,
            jitter and loss, as far as they are given, with commas between them. A part may be left
            empty: ``,50ms`` limits no rate.

    Raises:
        UsageError: It is no such text; the message says what is wrong, and how to write it.
    """
    parts = [part.strip() for part in text.split(",")]
    rates = re.sub(r"/\s*s\s*(?=/|$)", "", parts[0], flags=re.IGNORECASE).split("/")
    if len(parts) > 4 or len(rates) > 2 or not any(parts):
        raise UsageError(f"{text!r} is no link; write {_GRAMMAR}")
    texts = zip(_LIMITS, [rates[0], rates[-1], *parts[1:]], strict=False)
    values = {key: part for key, part in texts if part.strip()}
    try:
        link = LinkSection.model_validate(values)
    except ValidationError as error:
        mistake = explain(error, LinkSection, values)[0]
        raise UsageError(f"{text!r} is no link: {mistake}; write {_GRAMMAR}") from None
    return NetworkLink(**link.model_dump(exclude_unset=True))
