"""Section of the job file that says what the links of the sites are like."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    ValidationInfo,
)

from flstream.job.fields import Allowed, Real, Section
from flstream.job.files import ExistingFile
from flstream.job.link import (
    DELAY,
    LEAST_RATE,
    LOSS,
    MOST_RATE,
    MOST_SECONDS,
    RATE,
    NetworkLink,
    TracePoint,
    read_delay,
    read_loss,
    read_rate,
    read_traces,
)
from flstream.job.problems import Problem, RefusedValueError, given, must_be
from flstream.job.site_names import site_of
from flstream.units import format_bits_exact, format_seconds_exact

LINK_KEYS = ("up", "down", "latency", "jitter", "loss")
"""Keys of the values of a link."""

_TRACE_FILE = ExistingFile((".csv",))
_SPREADS = "{ distribution = lognormal, median, sigma }, { distribution = uniform, low, high }"
_IN_UNITS = ("median", "low", "high")


class Lognormal(Section):
    """A lognormal distribution of which each site draws its own value."""

    distribution: Literal["lognormal"]
    median: float
    sigma: Annotated[Real, Field(ge=0, le=10)]
    """The standard deviation of the logarithm."""

    def at(self, number: float) -> float:
        """Return the value below which this fraction of all lies."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(number))


class Uniform(Section):
    """A uniform distribution of which each site draws its own value."""

    distribution: Literal["uniform"]
    low: float
    high: float

    def at(self, number: float) -> float:
        """Return the value below which this fraction of all lies."""
        return self.low + (self.high - self.low) * number


def _which(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("distribution"))
    return getattr(value, "distribution", "value")


_Drawn = Annotated[
    Annotated[float, Tag("value")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Uniform, Tag("uniform")],
    Discriminator(_which),
]


@dataclass(frozen=True)
class _Quantity(GroupedMetadata):
    """A value of a link in its unit, or a distribution of it."""

    parse: Callable[[Any], float]
    render: Callable[[float], Any]
    allowed: str
    least: float
    """Least value that a site may draw."""
    most: float

    def __iter__(self) -> Iterator[Any]:
        yield BeforeValidator(self._read)
        yield PlainSerializer(self._written, when_used="json")
        yield Allowed(f"{self.allowed}, or {_SPREADS}", ("string", "number", "object"))

    def _read(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value if isinstance(value, Section) else self._number("", value)
        read = {
            name: self._number(name, number) if name in _IN_UNITS else number
            for name, number in value.items()
        }
        if {"low", "high"} <= read.keys() and read["high"] < read["low"]:
            raise RefusedValueError(Problem("high", given(value["high"]), "at least low"))
        return read

    def _number(self, name: str, value: Any) -> float:
        try:
            return self.parse(value)
        except ValueError:
            words = self.allowed if name else f"{self.allowed}, or {_SPREADS}"
            raise RefusedValueError(Problem(name, given(value), words)) from None

    def _written(self, value: Any) -> Any:
        if not isinstance(value, Section):
            return self.render(value)
        return {
            name: self.render(number) if name in _IN_UNITS else number
            for name, number in value.model_dump().items()
        }


_RATE = _Quantity(read_rate, format_bits_exact, RATE, LEAST_RATE, MOST_RATE)
_DELAY = _Quantity(read_delay, format_seconds_exact, DELAY, 0.0, MOST_SECONDS)
_LOSS = _Quantity(read_loss, float, LOSS, 0.0, 0.999)
_QUANTITIES = {"up": _RATE, "down": _RATE, "latency": _DELAY, "jitter": _DELAY, "loss": _LOSS}


class LinkSection(Section):
    """The link of a site, or of all sites."""

    up: Annotated[_Drawn, _RATE] | None = None
    """What a site can send (bits a second: `10 Mbit`, `10 Mbit/s`); null is without limit.

    This and each of the next four keys is a value, or a distribution of which each site draws its
    own, by the job's seed and the site's name: `{ distribution = lognormal, median = 10 Mbit,
    sigma = 0.5 }`, where sigma is the standard deviation of the logarithm, or `{ distribution =
    uniform, low = 5 Mbit, high = 20 Mbit }`.
    """

    down: Annotated[_Drawn, _RATE] | None = None
    """What a site can receive (bits a second); null is without limit."""

    latency: Annotated[_Drawn, _DELAY] | None = None
    """How long a byte travels, one way (duration); a round trip takes twice as long; null is 0."""

    jitter: Annotated[_Drawn, _DELAY] | None = None
    """How much longer it may travel (duration), drawn uniformly; null is 0."""

    loss: Annotated[_Drawn, _LOSS] | None = None
    """The fraction of packets (of 1,460 bytes) that are lost (`0.01` or `1%`); null is 0.

    A lost packet is sent again one round trip later, and what comes after it has to wait for it.
    """


class Traces(NamedTuple):
    """A file of traces, read.

    Attributes:
        path: Absolute path of the file.
        sites: Points of each site, by its name, in the order of time.
    """

    path: Path
    sites: Mapping[str, tuple[TracePoint, ...]]


def _read(value: Any, info: ValidationInfo) -> Traces:
    if isinstance(value, Traces):
        return value
    try:
        path = _TRACE_FILE.parse(value, info)
    except ValueError as error:
        raise must_be(_TRACE_FILE.allowed, str(error)) from error
    return Traces(path, read_traces(path))


def _as_written(links: Mapping[str, LinkSection]) -> dict[str, Any]:
    return {site: link.model_dump(mode="json", exclude_unset=True) for site, link in links.items()}


class NetworkSection(LinkSection):
    """Emulated links of the sites, which pace the traffic of models.

    A site's link is between it and all others. All that the site sends shares `up`, and all that it
    receives shares `down`. Models come out the same, bit for bit. Without any of these keys nothing
    is emulated. The page [network.md](network.md) says what is emulated and what is not.
    """

    sites: Annotated[
        dict[Annotated[str, AfterValidator(site_of)], LinkSection],
        PlainSerializer(_as_written, when_used="json"),
        Allowed(
            f"a section for each site with any of {', '.join(LINK_KEYS)}",
            ("object",),
        ),
    ] = Field(default_factory=dict)
    """The same keys for single sites, in the place of those above: `{ site-1 { up = 1 Mbit } }`."""

    traces: (
        Annotated[
            Any,
            PlainValidator(_read),
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
        values = (*(getattr(self, key) for key in LINK_KEYS), self.traces)
        return bool(self.sites) or any(value is not None for value in values)

    def link(self, site: str, seed: int) -> NetworkLink:
        """Return the link of a site.

        Args:
            site: Name of the site.
            seed: Seed of the job.
        """
        own, drawn = self.sites.get(site), {}
        for key, quantity in _QUANTITIES.items():
            is_own = own is not None and key in own.model_fields_set
            value = getattr(own if is_own else self, key)
            if isinstance(value, Lognormal | Uniform):
                value = min(max(value.at(_number(seed, key, site)), quantity.least), quantity.most)
            if value is not None:
                drawn[key] = value
        link = NetworkLink(**drawn)
        traces = {} if self.traces is None else self.traces.sites
        return replace(link, trace=traces[site]) if site in traces else link

    def links(self, sites: Iterable[str], seed: int) -> dict[str, NetworkLink]:
        """Return the links of sites by their names; none where nothing is emulated.

        Args:
            sites: Names of the sites.
            seed: Seed of the job.
        """
        return {site: self.link(site, seed) for site in sites} if self.is_on else {}


def _number(seed: int, key: str, site: str) -> float:
    """Return the number between 0 and 1 with which a site draws its value of a key."""
    text = f"flstream/network/{seed}/{key}/{site}".encode()
    # Odd multiples of 2**-53, so neither 0 nor 1.
    word = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return (word >> 12 << 1 | 1) * 2.0**-53
