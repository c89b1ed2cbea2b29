"""Sums of integers as differences from the first one: exact where floats would not be."""

from __future__ import annotations

from typing import Any

import numpy as np

from flstream.aggregation.elements import Array

# Differences of 64-bit integers up to here are exact and do not wrap.
_EXACT = 2.0**62


def difference(values: Array, first: Array) -> Array:
    """Return ``values - first`` of two integer arrays, in float64.

    Where it is below 2^62 it is rounded once, as a whole; beyond, the values are.
    """
    if values.dtype.itemsize < 8:
        return np.subtract(values, first, dtype=np.float64)
    wrapped = values.view(np.int64) - first.view(np.int64)
    rounded = values.astype(np.float64) - first.astype(np.float64)
    return np.where(np.abs(rounded) < _EXACT, wrapped.astype(np.float64), rounded)


def shift(first: Array, by: Array) -> Array:
    """Return ``first + by`` for integers, rounded half to even and kept in the type's range."""
    by = _round_for(first, by)
    far = np.abs(by) >= _EXACT
    steps = np.where(far, 0.0, by).astype(np.int64)
    if far.any():
        # Beyond int64 only the sum fits. Integers wrap at 2^64, and so may the step.
        steps += np.mod(np.where(far, by, 0.0), 2.0**64).astype(np.uint64).view(np.int64)
    shifted = (first.astype(np.int64) + steps).astype(first.dtype)
    if first.dtype.itemsize == 8:
        # A rounded step can lead just beyond the range, where the sum wraps to its other end.
        about = first.astype(np.float64) + by
        wrapped = np.abs(shifted.astype(np.float64) - about) > _EXACT
        if wrapped.any():
            limits = np.iinfo(first.dtype)
            shifted[wrapped & (about > 0)] = limits.max
            shifted[wrapped & (about < 0)] = limits.min
    return shifted


def _round_for(first: Array, by: Array) -> Array:
    """Round ``by`` to whole numbers; where two are equally near, make the sum with ``first`` even.

    So a mean does not depend on which update came first.
    """
    rounded = np.rint(by)
    rest = by - rounded
    tie = (np.abs(rest) == 0.5) & (first & 1).astype(np.bool_)
    return np.where(tie, rounded + 2 * rest, rounded)


def whole_numbers(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round finite float64 half to even, to the nearest number that an integer type has."""
    limits = np.iinfo(dtype)
    whole = np.rint(values)
    above, below = whole >= float(limits.max), whole <= float(limits.min)
    rounded = np.where(above | below, 0.0, whole).astype(dtype)
    rounded[above], rounded[below] = limits.max, limits.min
    return rounded
