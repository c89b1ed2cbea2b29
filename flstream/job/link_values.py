"""Values of links in the job file: rates, delays and losses, given or drawn by each site."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

from pydantic_core import PydanticCustomError

from flstream.job.link import (
    LEAST_RATE,
    MOST_RATE,
    MOST_SECONDS,
    read_delay,
    read_loss,
    read_rate,
)
from flstream.job.problems import MISSING, UNKNOWN, Problem, did_you_mean, given
from flstream.job.rules import Choice, Real, ValueRule, refuse
from flstream.job.site_names import site_of
from flstream.job.values import render_value
from flstream.units import format_rate_exact, format_seconds_exact

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


class _LinkQuantity:
    """A kind of values that a link has.

    Args:
        parse: Reads a value.
        render: Writes it.
        allowed: What it may be, in words.
        least: Least value that may be drawn.
        most: Largest value that may be drawn.
    """

    def __init__(
        self,
        parse: Callable[[Any], float],
        render: Callable[[float], str],
        allowed: str,
        least: float,
        most: float,
    ) -> None:
        self.parse = parse
        self.render = render
        self.allowed = allowed
        self.least = least
        self.most = most


def _plain(value: float) -> str:
    return render_value(value)


_RATE = _LinkQuantity(
    read_rate,
    format_rate_exact,
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
    read_loss, _plain, "a fraction from 0 to below 1, such as 0.01 or 1%", 0.0, _MOST_LOSS
)
_KINDS = {"up": _RATE, "down": _RATE, "latency": _DELAY, "jitter": _DELAY, "loss": _LOSS}
LINK_KEYS = tuple(_KINDS)
"""Keys of the values of a link."""

_NAMES = {"lognormal": ("median", "sigma"), "uniform": ("low", "high")}


@dataclass(frozen=True)
class LinkValue(ValueRule):
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

    def parse(self, value: Any, folder: Path) -> float | LinkSpread:
        """Return the value, or the distribution."""
        if isinstance(value, dict):
            return self._spread(value, folder)
        return self._number("", value)

    def render(self, value: Any) -> str:
        """Return the value as HOCON text."""
        kind = _KINDS[self.name]
        if not isinstance(value, LinkSpread):
            return kind.render(value)
        first, second = _NAMES[value.distribution]
        last = _plain(value.second) if second == "sigma" else kind.render(value.second)
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
            raise refuse(Problem(key, given(value), allowed)) from None

    def _spread(self, value: Mapping[str, Any], folder: Path) -> LinkSpread:
        try:
            name = Choice(tuple(_NAMES)).parse(value.get("distribution"), folder)
        except PydanticCustomError as error:
            raise _inside("distribution", error) from error
        for key in value:
            if key not in ("distribution", *_NAMES[name]):
                hint = f"{name} has {' and '.join(_NAMES[name])}"
                raise refuse(Problem(key, UNKNOWN, "", hint))
        first, second = _NAMES[name]
        for key in (first, second):
            if key not in value:
                raise refuse(Problem(key, MISSING, f"given with distribution = {name}"))
        low = self._number(first, value[first])
        if name == "uniform":
            high = self._number(second, value[second])
            if high < low:
                raise refuse(Problem(second, given(value[second]), "at least low"))
            return LinkSpread("uniform", low, high)
        try:
            sigma = Real(0, most=10).parse(value[second], folder)
        except PydanticCustomError as error:
            raise _inside(second, error) from error
        return LinkSpread("lognormal", low, float(sigma))


@dataclass(frozen=True)
class LinksBySite(ValueRule):
    """Values of the links of single sites, by site."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"a section for each site with any of {', '.join(_KINDS)}"

    def parse(self, value: Any, folder: Path) -> dict[str, LinkValues]:
        """Return the values by site and key."""
        if not isinstance(value, dict):
            raise self.refused(value, "write { site-1 { up = 10 Mbit } }")
        return {site_of(quoted): self._link(quoted, link, folder) for quoted, link in value.items()}

    def render(self, value: Any) -> str:
        """Return the values as HOCON text."""
        sites = []
        for site, link in value.items():
            inner = ", ".join(f"{key} = {_rendered(key, one)}" for key, one in link.items())
            sites.append(f'"{site}" = {{ {inner} }}' if inner else f'"{site}" = {{}}')
        return f"{{ {', '.join(sites)} }}" if sites else "{}"

    def _link(self, quoted: str, link: Any, folder: Path) -> LinkValues:
        if not isinstance(link, dict):
            raise refuse(Problem(quoted, given(link), f"a section with any of {', '.join(_KINDS)}"))
        found: LinkValues = {}
        for key, value in link.items():
            if key not in _KINDS:
                hint = did_you_mean(key, _KINDS) or f"a link has {', '.join(_KINDS)}"
                raise refuse(Problem(f"{quoted}.{key}", UNKNOWN, "", hint))
            try:
                found[key] = None if value is None else LinkValue(key).parse(value, folder)
            except PydanticCustomError as error:
                raise _inside(f"{quoted}.{key}", error) from error
        return found


def _rendered(key: str, value: float | LinkSpread | None) -> str:
    return "null" if value is None else LinkValue(key).render(value)


def _inside(key: str, error: PydanticCustomError) -> PydanticCustomError:
    """Return the error of a value as that of the section that it is in."""
    problems = (error.context or {})["problems"]
    return refuse(
        *(replace(each, key=f"{key}.{each.key}" if each.key else key) for each in problems)
    )
