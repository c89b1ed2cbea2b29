"""The device of a site, as the virtual clock knows it: its speed, its links, when it is there."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

NANOSECONDS = 1_000_000_000


class Availability(Protocol):
    """Times at which a site is there; all times are nanoseconds since the run began."""

    def next_there(self, now: int) -> int:
        """Return the first time from ``now`` on at which the site is there."""
        ...

    def next_gone(self, now: int) -> int | None:
        """Return the first time after ``now`` at which it is not there; None for never."""
        ...


class SiteDevice(NamedTuple):
    """Device of a site.

    Attributes:
        name: Name of the kind of device, ``devices.NAME``; empty where the job has none.
        speed: Work that it does in a second, in units of what a device of speed 1 does.
        up: Bits a second that it can send; None for no limit.
        down: Bits a second that it can receive, likewise.
        latency: Seconds that a task waits for its link, once.
        memory: Bytes that it has for a model; None for no limit.
        dropout: Probability that it takes a task and never answers.
        availability: When it is there; None for always.
    """

    name: str = ""
    speed: float = 1.0
    up: float | None = None
    down: float | None = None
    latency: float = 0.0
    memory: int | None = None
    dropout: float = 0.0
    availability: Availability | None = None

    def before_work(self, nbytes: int) -> int:
        """Nanoseconds until it has received so many bytes, with the latency."""
        return _transfer(nbytes, self.down) + nanoseconds(self.latency)

    def work(self, seconds: Fraction) -> int:
        """Nanoseconds of work that a device of speed 1 does in so many seconds."""
        speed = exact(self.speed)
        nanoseconds = seconds.numerator * NANOSECONDS * speed.denominator
        return _quotient(nanoseconds, seconds.denominator * speed.numerator)

    def after_work(self, nbytes: int) -> int:
        """Nanoseconds until it has sent so many bytes."""
        return _transfer(nbytes, self.up)


@lru_cache(1024)
def nanoseconds(seconds: float) -> int:
    """Return seconds in whole nanoseconds, rounded half to even."""
    number = exact(seconds)
    return _quotient(number.numerator * NANOSECONDS, number.denominator)


@lru_cache(1024)
def exact(number: float) -> Fraction:
    """Return the decimal number that a float is written as: 0.1 is a tenth."""
    return Fraction(Decimal(repr(float(number))))  # twice as fast as of text


@lru_cache(1024)
def product(first: float, second: float) -> Fraction:
    """Return the product of the decimal numbers that two floats are written as."""
    return exact(first) * exact(second)


def _transfer(nbytes: int, rate: float | None) -> int:
    if rate is None:
        return 0
    number = exact(rate)
    return _quotient(8 * nbytes * NANOSECONDS * number.denominator, number.numerator)


def _quotient(dividend: int, divisor: int) -> int:
    """Divide whole numbers, rounded half to even; dividing Fractions takes four times as long."""
    quotient, rest = divmod(dividend, divisor)
    return quotient + (2 * rest > divisor or (2 * rest == divisor and quotient % 2 == 1))
