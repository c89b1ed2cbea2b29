"""Gaussian mechanism at the fold: central differential privacy (DP-FedAvg).

With updates x_i of a model x, whose differences are clipped to the L2 norm C, and n the number of
sites that a round is expected to draw, the next model is::

    x + (1 / n) (sum of clip(x_i - x) + z C N(0, 1))

So each update counts alike, and n stays what it is when sites fail: one site more or less changes
the sum by C at most, and the mean by C / n. That is the fixed-denominator estimator of McMahan et
al. 2018 (arXiv:1710.06963), algorithm 1. Every number is noised, also where no update has it: what
a partial update lacks counts as a difference of zero.

The noise is from a counter-based generator: number i is the same however a body is cut. Its bits
are those of Philox4x64 (Salmon et al. 2011, doi:10.1145/2063384.2063405), whose output is a
function of a key and a counter. Box and Muller's method (1958, doi:10.1214/aoms/1177706645) makes
two normal numbers of two words. Its logarithm, sine and cosine are computed here by sums,
products, quotients and square roots alone. IEEE 754 rounds these in one way, while the functions of
libm and NumPy differ in their last bits from one processor to another: so the noise has the same
bits on every machine. (The quantiles of :mod:`flstream.model.random_numbers`, which are as
reproducible, take 1.4 times as long.)
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from flstream.aggregation.elements import BLOCK, Array
from flstream.aggregation.regions import Region
from flstream.aggregation.rules import GaussianMechanism
from flstream.model.dtypes import unit
from flstream.model.layout import Layout

# A step of the counter gives four words, and so four numbers.
_NUMBERS_A_STEP = 4
# Pairs computed at a time: the six arrays for them (64 KiB each) stay in the L2 cache. With fewer,
# the calls of NumPy, each of which lets go of the interpreter's lock, take more than their work.
_PAIRS = 8192

# 1/3, 1/5 and so on of the series 2 s (1 + s^2/3 + s^4/5 + ...) = log((1 + s) / (1 - s)). With s at
# most 0.172, the first term that is left out is below 1e-16 of the sum.
_LOG_TERMS = [1 / (2 * term + 1) for term in range(10)]
# Taylor's series on [-pi/4, pi/4], whose first terms that are left out are below 1e-16.
_SINE_TERMS = [(-1) ** term / math.factorial(2 * term + 1) for term in range(8)]
_COSINE_TERMS = [(-1) ** term / math.factorial(2 * term) for term in range(9)]

_ROOT_HALF_BITS = np.float64(math.sqrt(0.5)).view(np.int64)
_MANTISSA_BITS = 52


class NoiseSource:
    """Standard normal numbers by index; any range of them can be computed by itself.

    Args:
        name: Name of the numbers' purpose; other names give independent numbers.
    """

    def __init__(self, name: str) -> None:
        self._key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        self._rooms = [np.empty(_PAIRS) for _ in range(5)]

    def fill(self, first: int, out: Array) -> None:
        """Write the numbers from ``first`` on into a float64 array."""
        done = 0
        while done < len(out):
            at = first + done
            step, skipped = divmod(at, _NUMBERS_A_STEP)
            count = min(len(out) - done, 2 * _PAIRS - _NUMBERS_A_STEP)
            pairs = -(-(skipped + count) // 2)
            words = np.random.Philox(key=self._key, counter=step).random_raw(2 * pairs)
            values = self._normal(words)
            out[done : done + count] = values[skipped : skipped + count]
            done += count

    def _normal(self, words: Array) -> Array:
        """Turn pairs of random words, which are overwritten, into pairs of normal numbers."""
        first, second = words.view(np.int64)[0::2], words.view(np.int64)[1::2]
        radius, angle, sine, cosine, square = (room[: len(first)] for room in self._rooms)
        # The top 53 bits of the first word, from 2^-53 to 1.
        np.copyto(radius, (first >> 11) & ((1 << 53) - 1))
        radius += 1.0
        radius *= 2.0**-53
        _log(radius, angle, sine, square)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        # Those of the second one, from -pi/4 to pi/4; of its lowest bits, one changes the sign of
        # the cosine, and one exchanges the two. So all four quarters of the circle are covered.
        np.copyto(angle, (second >> 11) & ((1 << 53) - 1))
        angle *= 2.0**-53
        angle -= 0.5
        angle *= math.pi / 2
        np.multiply(angle, angle, out=square)
        _polynomial(_SINE_TERMS, square, sine)
        sine *= angle
        sine *= radius
        _polynomial(_COSINE_TERMS, square, cosine)
        cosine *= radius
        cosine *= 1 - (second & 2)
        is_exchanged = (second & 1).astype(np.bool_)
        values = words.view(np.float64)
        even, odd = values[0::2], values[1::2]
        np.copyto(even, cosine)
        np.copyto(odd, sine)
        np.copyto(even, sine, where=is_exchanged)
        np.copyto(odd, cosine, where=is_exchanged)
        return values


def _log(values: Array, ratio: Array, series: Array, square: Array) -> None:
    """Replace positive numbers by natural logarithms; overwrite the other arrays."""
    bits = values.view(np.int64)
    # A number is 2^exponent times one from the root of 1/2 to that of 2.
    exponent = (bits - _ROOT_HALF_BITS) >> _MANTISSA_BITS
    bits -= exponent << _MANTISSA_BITS
    np.add(values, 1.0, out=square)
    np.subtract(values, 1.0, out=ratio)
    np.divide(ratio, square, out=ratio)
    np.multiply(ratio, ratio, out=square)
    _polynomial(_LOG_TERMS, square, series)
    np.multiply(ratio, series, out=values)
    values *= 2.0
    np.multiply(exponent, math.log(2), out=ratio)
    values += ratio


def _polynomial(terms: list[float], x: Array, out: Array) -> None:
    """Compute ``terms[0] + terms[1] x + terms[2] x^2 + ...`` by Horner's method."""
    np.multiply(x, terms[-1], out=out)
    for term in reversed(terms[1:-1]):
        out += term
        out *= x
    out += terms[0]


class PrivateMean:
    """Noise on the mean of a walk's updates, block by block."""

    def __init__(self, mechanism: GaussianMechanism, model: Layout) -> None:
        self._mechanism = mechanism
        self._model = model
        self._room = np.empty(BLOCK)
        self._noise = NoiseSource("")
        self._tensor: str | None = None

    def apply(self, region: Region, part: slice, mean: Array, old: Array) -> None:
        """Make a block of the mean private, at most ``BLOCK`` floats of a region.

        The mean, in float64, is over those who have it, all with the weight 1, or the ``old``
        values if nobody has. It is overwritten.
        """
        received = region.before + region.carriers.bit_count()
        if 0 < received != self._mechanism.cohort:
            np.subtract(mean, old, out=mean)
            np.multiply(mean, received / self._mechanism.cohort, out=mean)
            np.add(mean, old, out=mean)
        noise, size = self._room[: len(mean)], unit(region.dtype)
        start, stop = region.start + part.start * size, region.start + part.stop * size
        for spec in self._model.overlapping(start, stop):
            first, last = max(start, spec.start), min(stop, spec.stop)
            if spec.name != self._tensor:
                self._tensor = spec.name
                self._noise = NoiseSource(f"{self._mechanism.name}/{spec.name}")
            into = noise[(first - start) // size : (last - start) // size]
            self._noise.fill((first - spec.start) // size, into)
        np.multiply(noise, self._mechanism.noise, out=noise)
        np.add(mean, noise, out=mean)
