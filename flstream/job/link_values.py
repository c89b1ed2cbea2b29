"""Values of links in the job file: rates, delays and losses, given or drawn by each site."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from annotated_types import GroupedMetadata
from pydantic import Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticKnownError

from flstream.job.annotations import ValueKind
from flstream.job.link import (
    LEAST_RATE,
    MOST_RATE,
    MOST_SECONDS,
    read_delay,
    read_loss,
    read_rate,
)
from flstream.job.problems import (
    MISSING,
    UNKNOWN,
    Problem,
    RefusedValueError,
    did_you_mean,
    given,
)
from flstream.job.rules import Real
from flstream.job.site_names import site_of
from flstream.job.values import render_value
from flstream.units import format_bits_exact, format_seconds_exact

_MOST_LOSS = 0.999


@dataclass(frozen=True)
class LinkSpread:
    """A distribution of which each site draws a value of its own.

    Attributes:
        distribution: lognormal or uniform.
        first: Median of lognormal, least value of uniform.
        second: Standard deviation of lognormal's logarithm, largest value of uniform.
    """

    distribution: Literal["lognormal", "uniform"]
    first: float
    second: float

    def draw(self, seed: int, key: str, site: str) -> float:
        """Draw the value of a site, which depends on nothing but the arguments."""
        text = f"flstream/network/{seed}/{key}/{site}".encode()
        # Odd multiples of 2**-53, so neither 0 nor 1.
        word = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        number = (word >> 12 << 1 | 1) * 2.0**-53
        if self.distribution == "uniform":
            return self.first + (self.second - self.first) * number
        return self.first * math.exp(self.second * NormalDist().inv_cdf(number))


LinkValues: TypeAlias = dict[str, float | LinkSpread | None]
"""Values of a link by key: null is without limit, or 0."""


class _LinkQuantity(NamedTuple):
    """A kind of values that a link has.

    Attributes:
        parse: Reads a value.
        render: Writes it.
        allowed: What it may be, in words.
        least: Least value that may be drawn.
        most: Largest value that may be drawn.
    """

    parse: Callable[[Any], float]
    render: Callable[[float], str]
    allowed: str
    least: float
    most: float


_RATE = _LinkQuantity(
    read_rate,
    format_bits_exact,
    "a rate from 1 kbit/s to 1 Tbit/s, such as 10 Mbit",
    LEAST_RATE,
    MOST_RATE,
)
_DELAY = _LinkQuantity(
    read_delay,
    format_seconds_exact,
    f"a duration from 0 to {MOST_SECONDS:g} s, such as 50 ms",
    0.0,
    MOST_SECONDS,
)
_LOSS = _LinkQuantity(
    read_loss, render_value, "a fraction from 0 to below 1, such as 0.01 or 1%", 0.0, _MOST_LOSS
)
_KINDS = {"up": _RATE, "down": _RATE, "latency": _DELAY, "jitter": _DELAY, "loss": _LOSS}
LINK_KEYS = tuple(_KINDS)
"""Keys of the values of a link."""

_NAMES = {"lognormal": ("median", "sigma"), "uniform": ("low", "high")}


_SIGMA = TypeAdapter(Annotated[Real, Field(ge=0, le=10)])


@dataclass(frozen=True)
class LinkValue(GroupedMetadata):
    """A value of a link, or a distribution of which each site draws its own."""

    name: str
    """Key of the value: up, down, latency, jitter or loss."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        spread = ", ".join(
            f"{{ distribution = {name}, {first}, {second} }}"
            for name, (first, second) in _NAMES.items()
        )
        return f"{_KINDS[self.name].allowed}, or {spread}"

    def __iter__(self) -> Iterator[Any]:
        """Yield the validator, and the description."""
        yield PlainValidator(self.parse)
        yield ValueKind(self.allowed, render=self.render)

    def parse(self, value: Any) -> float | LinkSpread:
        """Return the value, or the distribution.

        Raises:
            RefusedValueError: It is neither.
        """
        return self._spread(value) if isinstance(value, dict) else self._number("", value)

    def render(self, value: Any) -> str:
        """Return the value as HOCON text."""
        kind = _KINDS[self.name]
        if not isinstance(value, LinkSpread):
            return "null" if value is None else kind.render(value)
        first, second = _NAMES[value.distribution]
        last = render_value(value.second) if second == "sigma" else kind.render(value.second)
        text = f"{first} = {kind.render(value.first)}, {second} = {last}"
        return f"{{ distribution = {value.distribution}, {text} }}"

    def bounded(self, value: float) -> float:
        """Return the value next to a drawn one that a link may have."""
        kind = _KINDS[self.name]
        return min(max(value, kind.least), kind.most)

    def _number(self, key: str, value: Any) -> float:
        kind = _KINDS[self.name]
        try:
            return kind.parse(value)
        except ValueError:
            allowed = kind.allowed if key else self.allowed
            raise RefusedValueError(Problem(key, given(value), allowed)) from None

    def _spread(self, value: Mapping[str, Any]) -> LinkSpread:
        name = value.get("distribution")
        if name not in _NAMES:
            hint = did_you_mean(str(name).lower(), _NAMES)
            allowed = f"one of {', '.join(_NAMES)}"
            raise RefusedValueError(Problem("distribution", given(name), allowed, hint))
        first, second = _NAMES[name]
        for key in value:
            if key not in ("distribution", first, second):
                hint = f"{name} has {first} and {second}"
                raise RefusedValueError(Problem(key, UNKNOWN, "", hint))
        for key in (first, second):
            if key not in value:
                allowed = f"given with distribution = {name}"
                raise RefusedValueError(Problem(key, MISSING, allowed))
        low, last = self._number(first, value[first]), value[second]
        if name == "uniform":
            high = self._number(second, last)
            if high < low:
                raise RefusedValueError(Problem(second, given(last), "at least low"))
            return LinkSpread("uniform", low, high)
        try:
            return LinkSpread("lognormal", low, _SIGMA.validate_python(last))
        except ValidationError:
            allowed = "a number of at least 0 and at most 10"
            raise RefusedValueError(Problem(second, given(last), allowed)) from None


def _read_links(value: Any) -> dict[str, LinkValues]:
    """Return the values of links by site and key."""
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    found = {}
    for quoted, link in value.items():
        try:
            site = site_of(quoted)
            found[site] = _read_link(link)
        except RefusedValueError as error:
            raise RefusedValueError(*error.below(quoted)) from None
    return found


def _read_link(link: Any) -> LinkValues:
    if not isinstance(link, dict):
        allowed = f"a section with any of {', '.join(_KINDS)}"
        raise RefusedValueError(Problem("", given(link), allowed))
    found: LinkValues = {}
    for key, value in link.items():
        if key not in _KINDS:
            hint = did_you_mean(key, _KINDS) or f"a link has {', '.join(_KINDS)}"
            raise RefusedValueError(Problem(key, UNKNOWN, "", hint))
        try:
            found[key] = None if value is None else LinkValue(key).parse(value)
        except RefusedValueError as error:
            raise RefusedValueError(*error.below(key)) from None
    return found


def _render_links(links: Mapping[str, LinkValues]) -> str:
    """Return links as HOCON text."""
    sites = []
    for site, link in links.items():
        inner = ", ".join(f"{key} = {LinkValue(key).render(one)}" for key, one in link.items())
        sites.append(f'"{site}" = {{ {inner} }}' if inner else f'"{site}" = {{}}')
    return f"{{ {', '.join(sites)} }}" if sites else "{}"


LinksBySite = Annotated[
    dict[str, LinkValues],
    PlainValidator(_read_links),
    ValueKind(
        f"a section for each site with any of {', '.join(_KINDS)}",
        "{ site-1 { up = 10 Mbit } }",
        render=_render_links,
    ),
]
"""Values of the links of single sites, by site."""
