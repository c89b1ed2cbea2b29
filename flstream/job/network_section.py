"""Emulated links of the sites: as a section, a command line's text, or traces."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from flstream.errors import UsageError
from flstream.job.fields import Allowed, Real, Section, in_unit, read_number
from flstream.job.files import csv_rows, existing_path
from flstream.job.keys import explain
from flstream.job.link import NetworkLink, TracePoint
from flstream.job.problems import Problem, RefusedValueError, must_be
from flstream.job.site_names import site_of
from flstream.units import format_bits_exact, format_seconds_exact, parse_rate, parse_seconds

# Points that are closer to each other would cost more than they say.
_LEAST_STEP = 1e-3
_GRAMMAR = (
    "RATE[/RATE][,LATENCY[,JITTER[,LOSS]]], such as 10Mbit,50ms or 10Mbit/100Mbit,50ms,5ms,1%"
)
# Least and most of what is drawn; a slower link would be silent for longer than peers wait.
_RATES, _DELAYS, _LOSSES = (1e3, 1e12), (0.0, 60.0), (0.0, 0.999)
_LIMITS = {"up": _RATES, "down": _RATES, "latency": _DELAYS, "jitter": _DELAYS, "loss": _LOSSES}


class Lognormal(Section):
    """A lognormal distribution of which each site draws its own value."""

    distribution: Literal["lognormal"]
    median: float
    sigma: Annotated[Real, Field(ge=0, le=10)]
    """The standard deviation of the logarithm."""

    def at(self, number: float) -> float:
        """Return the value at a fraction of the distribution."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(number))


class Uniform(Section):
    """A uniform distribution of which each site draws its own value."""

    distribution: Literal["uniform"]
    low: float
    high: float

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.high < self.low:
            raise RefusedValueError(Problem("high", "", "at least low"))
        return self

    def at(self, number: float) -> float:
        """Return the value at a fraction of the distribution."""
        return self.low + (self.high - self.low) * number


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("distribution"))
    return getattr(value, "distribution", "value")


def _fraction(value: str | int | float) -> float:
    """Return a fraction, such as 0.01 or ``1%``."""
    text = str(value).strip()
    number = read_number(text.removesuffix("%"))
    if isinstance(number, str):
        raise ValueError("it is no number")
    return float(number) / 100 if text.endswith("%") else float(number)


_Rate = Annotated[
    float,
    Field(ge=_RATES[0], le=_RATES[1]),
    *in_unit(parse_rate, format_bits_exact, "a rate from 1 kbit/s to 1 Tbit/s, such as 10 Mbit"),
]
_Delay = Annotated[
    float,
    Field(ge=_DELAYS[0], le=_DELAYS[1]),
    *in_unit(parse_seconds, format_seconds_exact, "a duration from 0 to 60 s, such as 50 ms"),
]
_Loss = Annotated[
    float,
    Field(ge=0, lt=1),
    *in_unit(_fraction, float, "a fraction from 0 to below 1, such as 0.01 or 1%"),
]


class _LognormalRate(Lognormal):
    median: _Rate


class _UniformRate(Uniform):
    low: _Rate
    high: _Rate


class _LognormalDelay(Lognormal):
    median: _Delay


class _UniformDelay(Uniform):
    low: _Delay
    high: _Delay


class _LognormalLoss(Lognormal):
    median: _Loss


class _UniformLoss(Uniform):
    low: _Loss
    high: _Loss


Number = TypeVar("Number")
Normal = TypeVar("Normal")
Even = TypeVar("Even")
_Drawn = Annotated[
    Annotated[Number, Tag("value")]
    | Annotated[Normal, Tag("lognormal")]
    | Annotated[Even, Tag("uniform")],
    Discriminator(_kind),
]
_DrawnRate = _Drawn[_Rate, _LognormalRate, _UniformRate]
_DrawnDelay = _Drawn[_Delay, _LognormalDelay, _UniformDelay]
_DrawnLoss = _Drawn[_Loss, _LognormalLoss, _UniformLoss]


class LinkSection(Section):
    """The link of a site, or of all sites."""

    up: _DrawnRate | None = None
    """What a site can send (bits a second: `10 Mbit`, `10 Mbit/s`); null is without limit.

    This and each of the next four keys is a value, or a distribution of which each site draws its
    own, by the job's seed and the site's name: `{ distribution = lognormal, median = 10 Mbit,
    sigma = 0.5 }`, where sigma is the standard deviation of the logarithm, or `{ distribution =
    uniform, low = 5 Mbit, high = 20 Mbit }`.
    """

    down: _DrawnRate | None = None
    """What a site can receive (bits a second); null is without limit."""

    latency: _DrawnDelay | None = None
    """How long a byte travels, one way (duration); a round trip takes twice as long; null is 0."""

    jitter: _DrawnDelay | None = None
    """How much longer it may travel (duration), drawn uniformly; null is 0."""

    loss: _DrawnLoss | None = None
    """The fraction of packets (of 1,460 bytes) that are lost (`0.01` or `1%`); null is 0.

    A lost packet is sent again one round trip later, and what comes after it has to wait for it.
    """


class Traces(NamedTuple):
    """Contents of a file of traces.

    Attributes:
        path: Absolute path of the file.
        sites: Points of each site, by its name, in the order of time.
    """

    path: Path
    sites: Mapping[str, tuple[TracePoint, ...]]


def _none_or_a_bit(rate: float) -> float:
    if 0 < rate < 1:
        raise ValueError("")  # the words say all
    return rate


_TraceRate = Annotated[
    float,
    Field(le=_RATES[1]),
    AfterValidator(_none_or_a_bit),
    *in_unit(parse_rate, format_bits_exact, "0, or a rate from 1 bit/s to 1 Tbit/s"),
]


class _TraceRow(Section):
    """Row of a file of traces."""

    site: Annotated[str, Field(min_length=1)]
    seconds: Annotated[float, *in_unit(parse_seconds, float, "a duration, such as 10 s")]
    up: _TraceRate | None = None
    down: _TraceRate | None = None
    latency: _Delay | None = None


def _traces(value: Any, info: ValidationInfo) -> Traces:
    """Read a file of traces."""
    if isinstance(value, Traces):
        return value
    try:
        path = existing_path(value, info, (".csv",))
    except ValueError as error:
        raise must_be("the path of an existing .csv file", str(error)) from error
    traces: dict[str, list[TracePoint]] = {}
    for where, cells in csv_rows(path):
        try:
            row = _TraceRow.model_validate({name: cells[name] for name in cells if cells[name]})
        except ValidationError as error:
            raise ValueError(f"{where} {explain(error, _TraceRow, cells)[0]}") from None
        points = traces.setdefault(row.site, [])
        if not points and row.seconds:
            raise ValueError(f"{where} the trace of {row.site} has to begin at 0 seconds")
        if points and row.seconds < points[-1].seconds + _LEAST_STEP:
            raise ValueError(
                f"{where} seconds of {row.site} is {row.seconds:g} after {points[-1].seconds:g}; "
                "each row has to be at least a millisecond later than the one before"
            )
        points.append(TracePoint(row.seconds, row.up, row.down, row.latency))
    if not traces:
        raise ValueError(f"{path} has no rows; write one for each site and time")
    for site, points in traces.items():
        for way in ("up", "down"):
            if all(getattr(point, way) == 0 for point in points):
                raise ValueError(f"{path}: {way} of {site} is 0 at all times; give it a rate once")
    return Traces(path, {site: tuple(points) for site, points in traces.items()})


def _written(links: Mapping[str, LinkSection]) -> dict[str, Any]:
    return {site: link.model_dump(mode="json", exclude_unset=True) for site, link in links.items()}


class NetworkSection(LinkSection):
    """Emulated links of the sites, which pace the traffic of models.

    A site's link is between it and all others. All that the site sends shares `up`, and all that it
    receives shares `down`. Models come out the same, bit for bit. Without any of these keys nothing
    is emulated. The page [network.md](../network.md) says what is emulated and what is not.
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
        for key, (least, most) in _LIMITS.items():
            is_own = own is not None and key in own.model_fields_set
            value = getattr(own if is_own else self, key)
            if isinstance(value, Lognormal | Uniform):
                value = min(max(value.at(_number(seed, key, site)), least), most)
            if value is not None:
                values[key] = value
        return NetworkLink(**values, trace=self.traces.sites.get(site, ()) if self.traces else ())

    def links(self, sites: Iterable[str], seed: int) -> dict[str, NetworkLink]:
        """Return the links of sites by their names; none where nothing is emulated."""
        return {site: self.link(site, seed) for site in sites} if self.is_on else {}


def _number(seed: int, key: str, site: str) -> float:
    """Return the number between 0 and 1 by which a site draws its value of a key."""
    text = f"flstream/network/{seed}/{key}/{site}".encode()
    # Odd multiples of 2**-53, so neither 0 nor 1.
    word = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return (word >> 12 << 1 | 1) * 2.0**-53


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
