"""Krum, Multi-Krum and Bulyan, which choose updates by their distances.

Krum and Multi-Krum are of Blanchard et al. 2017 (arXiv:1703.02757), Bulyan is of El Mhamdi et al.
2018 (arXiv:1802.07927). With n updates of which f may be Byzantine, an update's score is the sum of
its squared distances to the n - f - 2 others that are nearest to it: f updates, whatever they are,
cannot be near to one that has as many honest ones around it. All updates count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flstream.aggregation.elements import SMALL_BLOCK, Array, blocks
from flstream.aggregation.gram import squared_distances
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.methods import Combination, CoordinateFold
from flstream.errors import AggregationError
from flstream.job.aggregation_section import METHODS


def krum(updates: int, byzantine: int | None) -> Combination:
    """Make Krum, which takes one update.

    Raises:
        AggregationError: There are too few updates.
    """
    byzantine = _byzantine("krum", updates, byzantine)
    return WeightedMean(), partial(krum_weights, byzantine=byzantine, selected=1)


def multi_krum(updates: int, byzantine: int | None, selected: int | None) -> Combination:
    """Make Multi-Krum, the mean of the updates that Krum selects; None is all but ``byzantine``.

    Raises:
        AggregationError: There are too few updates.
    """
    byzantine = _byzantine("multi_krum", updates, byzantine)
    selected = selected or updates - byzantine
    if selected > updates:
        raise AggregationError(
            f"multi_krum is to choose {selected} updates, and there are {updates}; lower "
            "aggregation.args.selected, or raise clients.min_updates"
        )
    return WeightedMean(), partial(krum_weights, byzantine=byzantine, selected=selected)


def bulyan(updates: int, byzantine: int | None) -> Combination:
    """Make Bulyan.

    Raises:
        AggregationError: There are too few updates.
    """
    byzantine = _byzantine("bulyan", updates, byzantine)
    fold = CoordinateFold(partial(around_median, left_out=2 * byzantine))
    return fold, partial(bulyan_weights, byzantine=byzantine)


def _byzantine(method: str, updates: int, byzantine: int | None) -> int:
    """Return how many updates may be Byzantine: as given, or as many as possible."""
    needed = METHODS[method].least_updates(byzantine or 0)
    if byzantine is None:
        byzantine = METHODS[method].most_byzantine(updates)
    if updates < needed:
        raise AggregationError(
            f"{method} needs {needed} or more updates where {max(byzantine, 0)} of them may "
            f"be Byzantine, and there are {updates}; lower aggregation.args.byzantine, or have "
            "more sites train (clients.per_round, clients.min_updates)"
        )
    return byzantine


def krum_weights(gram: Array, weights: Array, *, byzantine: int, selected: int) -> Array:
    """Weigh the ``selected`` updates with the lowest scores 1, and the others 0.

    Of two with the same score, the first in the cohort's order is selected. Of n updates, f may be
    ``byzantine``; n is at least 2 f + 3. One update is Krum, and more are Multi-Krum. See
    :data:`flstream.aggregation.methods.Weigh`.
    """
    scores = _scores(squared_distances(gram), byzantine)
    return _marked(len(gram), np.argsort(scores, kind="stable")[:selected].tolist())


def bulyan_weights(gram: Array, weights: Array, *, byzantine: int) -> Array:
    """Weigh n - 2 f updates 1, which Krum chooses in turn, and the others 0.

    Of n updates, f may be ``byzantine``; n is at least 4 f + 3.
    """
    distances = squared_distances(gram)
    remaining = list(range(len(gram)))
    for _ in range(len(gram) - 2 * byzantine):
        scores = _scores(distances[np.ix_(remaining, remaining)], byzantine)
        remaining.pop(int(np.argmin(scores)))
    return 1 - _marked(len(gram), remaining)


def around_median(values: Array, weights: Array, *, left_out: int) -> Array:
    """Average each coordinate's values nearest to their median, the end of Bulyan.

    Of two that are equally near, the lower one is taken. 2 f values are left out, and one is left.
    See :data:`flstream.aggregation.methods.Combine`.
    """
    values.sort(axis=0)
    combined: Array = values[0]
    for part in blocks(values.shape[1], SMALL_BLOCK):
        combined[part] = _around_median(values[:, part], min(left_out, len(values) - 1))
    return combined


def _around_median(ranked: Array, left_out: int) -> Array:
    """Return the mean around the median of sorted values, shape (n, numbers)."""
    count = len(ranked)
    lower, upper = ranked[(count - 1) // 2], ranked[count // 2]
    # Halved first, since the sum of two large numbers may be beyond float64.
    median = np.where(lower == upper, lower, lower / 2 + upper / 2)
    # The values nearest to it are neighbours in the order.
    width = count - left_out
    first = np.zeros(median.shape, np.intp)
    for low in range(left_out):
        # The window moves up as long as its lowest value is farther off than the next above it.
        first += (median - ranked[low] > ranked[low + width] - median) & (first == low)
    total = np.zeros(median.shape)
    for place, values in enumerate(ranked):
        is_kept = (first <= place) & (place < first + width)
        np.add(total, values, out=total, where=is_kept)
    mean: Array = np.divide(total, width, out=total)
    return mean


def _scores(distances: Array, byzantine: int) -> Array:
    """Return the sum of each update's least squared distances to others, from (n, n)."""
    others = np.sort(distances + np.diag(np.full(len(distances), np.inf)), axis=1)
    neighbours = max(len(distances) - byzantine - 2, 0)
    scores: Array = np.add.reduce(others[:, :neighbours], axis=1)
    return scores


def _marked(count: int, places: Sequence[int]) -> Array:
    marked = np.zeros(count)
    marked[places] = 1
    return marked
