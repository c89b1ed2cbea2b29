"""Quantities of sites in a job file: values, and distributions that sites draw from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

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


Quantity = TypeVar("Quantity", bound=float)


class Distribution(Section, Generic[Quantity]):
    """A distribution of which each site draws its own value of a quantity."""

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name of the class for a quantity, without dots: so pickle finds it."""
        return super().model_parametrized_name(params).replace(".", ",")


class Lognormal(Distribution[Quantity]):
    """A lognormal distribution of which each site draws its own value."""

    distribution: Literal["lognormal"]
    median: Quantity
    sigma: Annotated[Real, Field(ge=0, le=10)]
    """The standard deviation of the logarithm."""

    def at(self, number: float) -> float:
        """Return the value at a fraction of the distribution."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(number))


class Uniform(Distribution[Quantity]):
    """A uniform distribution of which each site draws its own value."""

    distribution: Literal["uniform"]
    low: Quantity
    high: Quantity

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


_Normal = TypeVar("_Normal")
_Even = TypeVar("_Even")
_Drawn = Annotated[
    Annotated[Quantity, Tag("value")]
    | Annotated[_Normal, Tag("lognormal")]
    | Annotated[_Even, Tag("uniform")],
    Discriminator(_kind),
]
DrawnRate = _Drawn[Rate, Lognormal[Rate], Uniform[Rate]]
DrawnDelay = _Drawn[Delay, Lognormal[Delay], Uniform[Delay]]
DrawnFraction = _Drawn[_Fraction, Lognormal[_Fraction], Uniform[_Fraction]]
DrawnSpeed = _Drawn[_Speed, Lognormal[_Speed], Uniform[_Speed]]
DrawnSize = _Drawn[_Size, Lognormal[_Size], Uniform[_Size]]

AnyQuantity: TypeAlias = "float | Lognormal[float] | Uniform[float]"
"""Value that all sites have, or the distribution that they draw from."""


def draw(quantity: AnyQuantity, limits: tuple[float, float], *name: str | int) -> float:
    """Return a site's value of a quantity, within limits.

    Args:
        quantity: The quantity.
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
