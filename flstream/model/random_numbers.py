"""Random numbers by place: each depends on a key and its index alone.

Noise that is added range by range must not depend on the ranges. So a stream of numbers is not
drawn from a generator with a state, but computed from a key and the place in the stream: Philox
4x64-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011, doi:10.1145/2063384.2063405), of which NumPy has the raw words.

Normal and Laplace numbers are made of the words by additions, multiplications, divisions and square
roots alone. Those are rounded alike everywhere, while a library's logarithm differs in its last bit
from one machine, or one length of an array, to another.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

# Words that Philox makes of one value of its counter.
_WORDS = 4
# Elements that are computed at a time, so that their intermediate results stay in a core's cache.
_BLOCK = 1 << 13
_LN_2 = 0.6931471805599453
# Its first 32 bits, of which the product with a whole number is exact, and the rest.
_LN_2_HIGH, _LN_2_LOW = 0.6931471803691238, 1.9082149292705877e-10


def stream_key(*parts: str | int) -> bytes:
    """Return the key of a stream of random numbers.

    Args:
        parts: Parts of the stream's identity, such as a seed, a purpose, a tensor's name.
            Streams of different parts, also of differently divided ones, have nothing in common.

    Returns:
        16 bytes.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"flstream/random")
    for part in parts:
        text = f"{type(part).__name__[0]}{part}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.digest()


def words(key: bytes, start: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the random words of 64 bits at the indices ``[start, start + count)``.

    Args:
        key: Key of the stream, 16 bytes.
        start: Index of the first one, at least 0.
        count: How many.
    """
    first = start // _WORDS
    # NumPy's generator adds one to the counter before it makes the first words.
    counter = (first - 1) % 2**256
    generator = np.random.Philox(key=int.from_bytes(key, "little"), counter=counter)
    skipped = start - first * _WORDS
    raw = generator.random_raw(skipped + count)
    return np.asarray(raw[skipped:], np.uint64)


def uniforms(key: bytes, start: int, count: int) -> Floats:
    """Return uniform random numbers above 0 and below 1.

    They are the odd multiples of 2**-53. The arguments are those of :func:`words`.
    """
    # 52 bits and a half: exact in a float, so that the numbers lie evenly around 1/2.
    return ((words(key, start, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals(key: bytes, start: int, count: int) -> Floats:
    """Return normal random numbers of mean 0 and variance 1, at most 8.3 from 0.

    They are quantiles of :func:`uniforms` of the same key and indices (Wichura, algorithm AS 241,
    1988, doi:10.2307/2347330), with a relative error below 1e-14.
    """
    return _in_blocks(_normal, key, start, count)


def laplaces(key: bytes, start: int, count: int) -> Floats:
    """Return Laplace random numbers of mean 0 and scale 1 (variance 2).

    They are quantiles of :func:`uniforms` of the same key and indices, at most 36.1 from 0.
    """
    return _in_blocks(_laplace, key, start, count)


def logarithms(values: Floats) -> Floats:
    """Return the natural logarithms of positive numbers, the same on every machine.

    With m between sqrt(1/2) and sqrt(2), log m is 2 artanh((m - 1) / (m + 1)), whose series is cut
    where its next term is below the last bit.
    """
    mantissa, exponent = np.frexp(values)
    is_low = mantissa < 0.7071067811865476
    mantissa = np.where(is_low, 2.0 * mantissa, mantissa)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    series = _polynomial(ratio * ratio, _ARTANH)
    return (exponent - is_low) * _LN_2 + 2.0 * ratio * series


def exponentials(values: Floats) -> Floats:
    """Return e to the power of numbers from -700 to 700, the same on every machine.

    The rest of a division by log 2 is at most 0.35, for which Taylor's series is cut where its next
    term is below the last bit.
    """
    power = np.rint(values * (1.0 / _LN_2))
    rest = (values - power * _LN_2_HIGH) - power * _LN_2_LOW
    return np.ldexp(_polynomial(rest, _TAYLOR), power.astype(np.int32))


def _in_blocks(quantile: Callable[[Floats], Floats], key: bytes, start: int, count: int) -> Floats:
    numbers = np.empty(count)
    for first in range(0, count, _BLOCK):
        stop = min(first + _BLOCK, count)
        numbers[first:stop] = quantile(uniforms(key, start + first, stop - first))
    return numbers


def _laplace(uniform: Floats) -> Floats:
    centred = uniform - 0.5
    # 1 - 2|u - 1/2| is exact, and above 0.
    return np.copysign(logarithms(1.0 - 2.0 * np.abs(centred)), centred)


def _normal(uniform: Floats) -> Floats:
    centred = uniform - 0.5
    squared = 0.180625 - centred * centred
    quantiles = centred * _ratio(squared, _CENTRE)
    outside = np.flatnonzero(np.abs(centred) > 0.425)
    if len(outside):
        tail = np.minimum(uniform[outside], 1.0 - uniform[outside])
        root = np.sqrt(-logarithms(tail))
        far = root > 5.0
        size = np.where(far, _ratio(root - 5.0, _FAR_TAIL), _ratio(root - 1.6, _TAIL))
        quantiles[outside] = np.copysign(size, centred[outside])
    return quantiles


def _ratio(x: Floats, coefficients: Sequence[tuple[float, float]]) -> Floats:
    above, below = zip(*coefficients, strict=True)
    return _polynomial(x, above) / _polynomial(x, below)


def _polynomial(x: Floats, coefficients: Sequence[float]) -> Floats:
    """Return a polynomial's values, with coefficients from the highest power down."""
    values = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        values *= x
        values += coefficient
    return values


# 1/23, 1/21 and so on to 1; the next term is below 2e-18 where ratio is at most 0.1716.
_ARTANH = [1.0 / odd for odd in range(23, 0, -2)]
# 1/14!, 1/13! and so on to 1.
_TAYLOR = [1.0 / math.factorial(power) for power in range(14, -1, -1)]

# Coefficients of AS 241 (PPND16), each power's above and below the bar, highest first.
_CENTRE = (
    (2.5090809287301226727e3, 5.2264952788528545610e3),
    (3.3430575583588128105e4, 2.8729085735721942674e4),
    (6.7265770927008700853e4, 3.9307895800092710610e4),
    (4.5921953931549871457e4, 2.1213794301586595867e4),
    (1.3731693765509461125e4, 5.3941960214247511077e3),
    (1.9715909503065514427e3, 6.8718700749205790830e2),
    (1.3314166789178437745e2, 4.2313330701600911252e1),
    (3.3871328727963666080e0, 1.0),
)
_TAIL = (
    (7.74545014278341407640e-4, 1.05075007164441684324e-9),
    (2.27238449892691845833e-2, 5.47593808499534494600e-4),
    (2.41780725177450611770e-1, 1.51986665636164571966e-2),
    (1.27045825245236838258e0, 1.48103976427480074590e-1),
    (3.64784832476320460504e0, 6.89767334985100004550e-1),
    (5.76949722146069140550e0, 1.67638483018380384940e0),
    (4.63033784615654529590e0, 2.05319162663775882187e0),
    (1.42343711074968357734e0, 1.0),
)
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.04426310338993978564e-15),
    (2.71155556874348757815e-5, 1.42151175831644588870e-7),
    (1.24266094738807843860e-3, 1.84631831751005468180e-5),
    (2.65321895265761230930e-2, 7.86869131145613259100e-4),
    (2.96560571828504891230e-1, 1.48753612908506148525e-2),
    (1.78482653991729133580e0, 1.36929880922735805310e-1),
    (5.46378491116411436990e0, 5.99832206555887937690e-1),
    (6.65790464350110377720e0, 1.0),
)
