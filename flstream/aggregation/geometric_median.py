"""Geometric median of updates: the point with the least sum of distances to them.

Robust federated aggregation, RFA (Pillutla et al. 2022, arXiv:1912.13445), with the smoothed
Weiszfeld algorithm. There, each iteration asks all sites. But all its points are weighted means of
the updates, whose distances follow from the inner products of the updates; so here an iteration
costs n^2 operations for n updates, and no further look at them.
"""

from __future__ import annotations

import numpy as np

from flstream.aggregation.elements import Array
from flstream.aggregation.gram import distances_to_mean, squared_distances
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.methods import Combination

# The least distance that counts, as a part of the median distance of two updates (RFA's nu, which
# is 1e-6 there for updates of any size).
_SMOOTHING = 1e-6
_MOST_ITERATIONS = 1000
_CONVERGED = 1e-12


def geometric_median(updates: int) -> Combination:
    """Make the geometric median: a mean with weights of its own."""
    return WeightedMean(), geometric_median_weights


def geometric_median_weights(gram: Array, weights: Array) -> Array:
    """Compute the weights, of sum 1, of the mean that is the geometric median.

    All updates count alike: see :data:`flstream.aggregation.methods.Weigh`.
    """
    distances = np.sqrt(squared_distances(gram))
    apart = distances[distances > 0]
    if not apart.size:
        return np.full(len(gram), 1 / len(gram))
    least = _SMOOTHING * float(np.median(apart))
    # From the update in the middle, and not from the plain mean: with one that is far off, that is
    # a long way back.
    typical = np.median(distances, axis=1)
    # Inner products of the updates less that one, whose distances lose fewer digits.
    place = int(np.argmin(typical))
    centre = gram[place]
    centred: Array = gram - centre[:, None] - centre + centre[place]
    estimate = _inverse(typical, least)
    for _ in range(_MOST_ITERATIONS):
        before, estimate = estimate, _inverse(distances_to_mean(centred, estimate), least)
        if np.max(np.abs(estimate - before)) < _CONVERGED:
            break
    return estimate


def _inverse(distances: Array, least: float) -> Array:
    """Return weights in inverse proportion to distances."""
    inverse = 1 / np.maximum(distances, least)
    weights: Array = inverse / np.add.reduce(inverse)
    return weights
