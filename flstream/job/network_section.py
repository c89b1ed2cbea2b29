"""Emulated links of the sites: as a section, as a text on a command line, as traces in a file."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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

from flstream.errors import UsageError
from flstream.job.csv_rows import csv_rows
from flstream.job.fields import Allowed, Real, Section, read_number
from flstream.job.files import ExistingFile
from flstream.job.link import NetworkLink, TracePoint
from flstream.job.problems import Problem, RefusedValueError, given, must_be
from flstream.job.site_names import site_of
from flstream.units import format_bits_exact, format_seconds_exact, parse_rate, parse_seconds

_TRACE_FILE = ExistingFile((".csv",))
_COLUMNS = ("site", "seconds", "up", "down", "latency")
# Points that are closer to each other would cost more than they say.
_LEAST_STEP = 1e-3
_GRAMMAR = (
    "RATE[/RATE][,LATENCY[,JITTER[,LOSS]]], such as 10Mbit,50ms or 10Mbit/100Mbit,50ms,5ms,1%"
)


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
_SPREADS = "{ distribution = lognormal, median, sigma }, { distribution = uniform, low, high }"
_IN_UNITS = ("median", "low", "high")


@dataclass(frozen=True)
class _Quantity(GroupedMetadata):
    """Type of a value of a link in its unit, or of a distribution of it."""

    parse: Callable[[Any], float]
    render: Callable[[float], Any]
    least: float
    most: float
    most_drawn: float
    allowed: str

    def __iter__(self) -> Iterator[Any]:
        yield BeforeValidator(self._validate)
        yield PlainSerializer(self._written, when_used="json")
        yield Allowed(f"{self.allowed}, or {_SPREADS}", ("string", "number", "object"))

    def read(self, value: Any) -> float:
        """Return the number of a value, or raise a ValueError that says what is one."""
        with suppress(ValueError):
            if self.least <= (number := self.parse(value)) <= self.most:
                return number
        raise ValueError(f"must be {self.allowed}")

    def _validate(self, value: Any) -> Any:
        if isinstance(value, Section):
            return value
        spread, allowed = (value, self.allowed) if isinstance(value, Mapping) else ({"": value}, "")
        numbers = dict(spread)
        for name in spread.keys() & {"", *_IN_UNITS}:
            try:
                numbers[name] = self.read(spread[name])
            except ValueError:
                words = allowed or f"{self.allowed}, or {_SPREADS}"
                raise RefusedValueError(Problem(name, given(spread[name]), words)) from None
        if numbers.get("high", math.inf) < numbers.get("low", -math.inf):
            raise RefusedValueError(Problem("high", given(spread["high"]), "at least low"))
        return numbers.get("", numbers)

    def _written(self, value: Any) -> Any:
        if not isinstance(value, Section):
            return self.render(value)
        values = value.model_dump()
        return values | {name: self.render(values[name]) for name in values.keys() & {*_IN_UNITS}}


def _fraction(value: str | int | float) -> float:
    """Return a fraction, also of ``1%``."""
    text = str(value).strip()
    number = read_number(text.removesuffix("%"))
    if isinstance(number, str):
        raise ValueError("it is no number")
    return float(number) / 100 if text.endswith("%") else float(number)


# A slower link would be silent for longer than peers wait.
_RATE = _Quantity(
    parse_rate,
    format_bits_exact,
    1e3,
    1e12,
    1e12,
    "a rate from 1 kbit/s to 1 Tbit/s, such as 10 Mbit",
)
_DELAY = _Quantity(
    parse_seconds, format_seconds_exact, 0, 60, 60, "a duration from 0 to 60 s, such as 50 ms"
)
_LOSS = _Quantity(
    _fraction,
    float,
    0,
    math.nextafter(1, 0),
    0.999,
    "a fraction from 0 to below 1, such as 0.01 or 1%",
)
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


def _traces(value: Any, info: ValidationInfo) -> Traces:
    """Read a file of traces.

    Raises:
        ValueError: There is a mistake in it; the message names the file, and the line.
    """
    if isinstance(value, Traces):
        return value
    try:
        path = _TRACE_FILE.parse(value, info)
    except ValueError as error:
        raise must_be(_TRACE_FILE.allowed, str(error)) from error
    traces: dict[str, list[TracePoint]] = {}
    for where, cells in csv_rows(path):
        if not {"site", "seconds"} <= cells.keys() <= {*_COLUMNS}:
            raise ValueError(
                f"{path}, line 1: the columns are {', '.join(cells)}; they have to be "
                f"{', '.join(_COLUMNS[:2])}, and any of {', '.join(_COLUMNS[2:])}"
            )
        for name in ("site", "seconds"):
            if not cells[name]:
                raise ValueError(f"{where} {name} is missing")
        site = cells.pop("site")
        numbers: dict[str, Any] = {name: _cell(name, cells[name], where) for name in cells}
        points, point = traces.setdefault(site, []), TracePoint(**numbers)
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
    return Traces(path, {site: tuple(points) for site, points in traces.items()})


def _cell(name: str, text: str, where: str) -> float | None:
    """Return the number of a cell; an empty one leaves to the job file what it stands for."""
    parse = {"seconds": parse_seconds, "latency": _DELAY.read}.get(name, _rate_or_none)
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise ValueError(f"{where} {name} is {text!r}, and {error}") from None


def _rate_or_none(text: str) -> float:
    """Return a rate, which may be 0 for a while."""
    rate = parse_rate(text)
    if rate > _RATE.most or 0 < rate < 1:
        raise ValueError("must be 0, or a rate from 1 bit/s to 1 Tbit/s")
    return rate


def _written(links: Mapping[str, LinkSection]) -> dict[str, Any]:
    return {site: link.model_dump(mode="json", exclude_unset=True) for site, link in links.items()}


class NetworkSection(LinkSection):
    """Emulated links of the sites, which pace the traffic of models.

    A site's link is between it and all others. All that the site sends shares `up`, and all that it
    receives shares `down`. Models come out the same, bit for bit. Without any of these keys nothing
    is emulated. The page [network.md](network.md) says what is emulated and what is not.
    """

    sites: Annotated[
        dict[Annotated[str, AfterValidator(site_of)], LinkSection],
        PlainSerializer(_written, when_used="json"),
        Allowed(f"a section for each site with any of {', '.join(_QUANTITIES)}", ("object",)),
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
        return bool(self.sites) or any(
            getattr(self, key) is not None for key in (*_QUANTITIES, "traces")
        )

    def link(self, site: str, seed: int) -> NetworkLink:
        """Return the link of a site.

        Args:
            site: Name of the site.
            seed: Seed of the job.
        """
        own, values = self.sites.get(site), dict[str, Any]()
        for key, quantity in _QUANTITIES.items():
            is_own = own is not None and key in own.model_fields_set
            value = getattr(own if is_own else self, key)
            if isinstance(value, Lognormal | Uniform):
                value = value.at(_number(seed, key, site))
                value = min(max(value, quantity.least), quantity.most_drawn)
            if value is not None:
                values[key] = value
        return NetworkLink(**values, trace=self.traces.sites.get(site, ()) if self.traces else ())

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
    rates = re.sub(r"/\s*s\s*(?=/|$)", "", parts[0], flags=re.IGNORECASE).split("/")
    if len(parts) > 4 or len(rates) > 2 or not any(parts):
        raise UsageError(f"{text!r} is no link; write {_GRAMMAR}")
    values: dict[str, Any] = {}
    for key, part in zip(_QUANTITIES, [rates[0], rates[-1], *parts[1:]], strict=False):
        try:
            if part.strip():
                values[key] = _QUANTITIES[key].read(part)
        except ValueError as error:
            raise UsageError(f"{part!r} in the link {text!r} {error}; write {_GRAMMAR}") from None
    return NetworkLink(**values)
