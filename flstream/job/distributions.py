"""Quantities of sites in a job file: values, and distributions that sites draw from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from flstream.job.fields import Real, Section, in_unit, read_number
from flstream.job.problems import Problem, RefusedValueError
from flstream.units import (
    format_bits_exact,
    format_bytes_exact,
    format_seconds_exact,
    parse_bytes,
    parse_rate,
    parse_seconds,
)

# Least and most of what is given or drawn; a slower link would be silent for longer than peers
# wait.
RATES, DELAYS, FRACTIONS = (1e3, 1e12), (0.0, 60.0), (0.0, 0.999)
SPEEDS, SIZES = (1e-6, 1e6), (1024.0, float(1 << 50))


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


Rate = Annotated[
    float,
    Field(ge=RATES[0], le=RATES[1]),
    *in_unit(parse_rate, format_bits_exact, "a rate from 1 kbit/s to 1 Tbit/s, such as 10 Mbit"),
]
"""Bits a second."""

Delay = Annotated[
    float,
    Field(ge=DELAYS[0], le=DELAYS[1]),
    *in_unit(parse_seconds, format_seconds_exact, "a duration from 0 to 60 s, such as 50 ms"),
]
"""A duration in seconds."""

_Fraction = Annotated[
    float,
    Field(ge=0, lt=1),
    *in_unit(_fraction, float, "a fraction from 0 to below 1, such as 0.01 or 1%"),
]
_Speed = Annotated[Real, Field(ge=SPEEDS[0], le=SPEEDS[1])]
_Size = Annotated[
    float,
    Field(ge=SIZES[0], le=SIZES[1]),
    *in_unit(
        parse_bytes,
        lambda size: format_bytes_exact(round(size)),
        "a size from 1 KiB to 1 PiB, such as 512 MiB",
    ),
]


class _LognormalRate(Lognormal):
    median: Rate


class _UniformRate(Uniform):
    low: Rate
    high: Rate


class _LognormalDelay(Lognormal):
    median: Delay


class _UniformDelay(Uniform):
    low: Delay
    high: Delay


class _LognormalFraction(Lognormal):
    median: _Fraction


class _UniformFraction(Uniform):
    low: _Fraction
    high: _Fraction


class _LognormalSpeed(Lognormal):
    median: _Speed


class _UniformSpeed(Uniform):
    low: _Speed
    high: _Speed


class _LognormalSize(Lognormal):
    median: _Size


class _UniformSize(Uniform):
    low: _Size
    high: _Size


_Number = TypeVar("_Number")
_Normal = TypeVar("_Normal")
_Even = TypeVar("_Even")
_Drawn = Annotated[
    Annotated[_Number, Tag("value")]
    | Annotated[_Normal, Tag("lognormal")]
    | Annotated[_Even, Tag("uniform")],
    Discriminator(_kind),
]
DrawnRate = _Drawn[Rate, _LognormalRate, _UniformRate]
DrawnDelay = _Drawn[Delay, _LognormalDelay, _UniformDelay]
DrawnFraction = _Drawn[_Fraction, _LognormalFraction, _UniformFraction]
DrawnSpeed = _Drawn[_Speed, _LognormalSpeed, _UniformSpeed]
DrawnSize = _Drawn[_Size, _LognormalSize, _UniformSize]


def draw(
    quantity: float | Lognormal | Uniform, limits: tuple[float, float], *name: str | int
) -> float:
    """Return a site's value of a quantity, within limits.

    Args:
        quantity: Value that all sites have, or the distribution that they draw from.
        limits: Least and most of a drawn value.
        name: Name of the draw, as of :func:`number_of`.
    """
    if not isinstance(quantity, Lognormal | Uniform):
        return quantity
    # exp and log of two libraries may differ in the last bit, and results must not.
    value = float(f"{quantity.at(number_of(*name)):.9g}")
    return min(max(value, limits[0]), limits[1])


def number_of(*name: str | int) -> float:
    """Return the number between 0 and 1 of a draw, by its name alone.

    Args:
        name: Section of the job file, seed, key and site; what other sites there are is no part.
    """
    text = f"flstream/{'/'.join(map(str, name))}".encode()
    # Odd multiples of 2**-53, so neither 0 nor 1.
    word = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return (word >> 12 << 1 | 1) * 2.0**-53
