"""Inner products of all pairs of updates' differences, from one pass.

Norms, distances and angles between updates all follow from this matrix, and so do those of any
weighted mean of them. Rules that compare whole updates need no other look at them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flstream.aggregation.elements import Array, blocks
from flstream.aggregation.steps import TILE_NUMBERS
from flstream.aggregation.update_set import UpdateSet
from flstream.model.dtypes import FLOATS

# NumPy sums a row of up to so many numbers without buffering a part of it.
_LONGEST_TILE = 8192


def gram_matrix(cohort: UpdateSet, updates: int, on_range: Callable[[int], None]) -> Array:
    """Compute the inner products of updates' differences, shape (updates, updates).

    They are over all aggregated floats, in float64; a tensor that an update does not have is one
    that it does not change. The matrix depends on neither the step nor where the body is cut.
    """
    sums = GramSum(updates)
    room = np.empty(0)
    for _, _, regions, contributions in cohort.ranges():
        # Where the floats of each region begin in a row.
        places, numbers = {}, 0
        for index, region in enumerate(regions):
            if region.dtype in FLOATS and not region.is_kept:
                places[index] = numbers
                numbers += region.numbers
        if len(room) < numbers * updates:
            room = np.empty(numbers * updates)
        values = room[: numbers * updates].reshape(updates, numbers)
        if any(updates > regions[index].carriers.bit_count() for index in places):
            values.fill(0)
        for index, parts, _ in contributions:
            for part in parts if index in places else ():
                row = values[part.place, places[index] :]
                for block in blocks(part.region.numbers):
                    part.differences(block, row[block])
        sums.add(values)
        on_range(0)
    return sums.matrix()


def squared_distances(gram: Array) -> Array:
    """Compute the squared distances of pairs of vectors from their inner products, shape (n, n)."""
    norms = np.diagonal(gram)
    distances: Array = norms[:, None] + norms - 2 * gram
    return np.maximum(distances, 0, out=distances)


def distances_to_mean(gram: Array, weights: Array) -> Array:
    """Compute the distances of vectors to their mean of these weights, whose sum is 1."""
    # Not by matrix products, whose last bits depend on the processor.
    inner = np.add.reduce(gram * weights, axis=1)
    squares = np.diagonal(gram) - 2 * inner + np.add.reduce(inner * weights)
    distances: Array = np.sqrt(np.maximum(squares, 0))
    return distances


class GramSum:
    """Sums of products that do not depend on how the rows are cut into blocks.

    The rows are cut into tiles at places that depend on the number of rows alone. The products of
    a tile are summed by NumPy's pairwise sum, and the sums of the tiles in order. A product and a
    sum are two roundings and never one fused step; so a matrix product, whose order of summation
    depends on library and processor, is none of the means.
    """

    def __init__(self, rows: int) -> None:
        self._matrix = np.zeros((rows, rows))
        length = min(max(TILE_NUMBERS // max(rows, 1), 1), _LONGEST_TILE)
        self._length = 1 << (length.bit_length() - 1)
        self._tile, self._room = np.empty((2, rows, self._length))
        self._filled = 0

    def add(self, values: Array) -> None:
        """Add the next numbers of all rows, float64 of shape (rows, numbers)."""
        at = min(-self._filled % self._length, values.shape[1])
        self._fill(values[:, :at])
        while at + self._length <= values.shape[1]:
            self._multiply(values[:, at : at + self._length])
            at += self._length
        self._fill(values[:, at:])

    def matrix(self) -> Array:
        """Return the matrix of shape (rows, rows), once all numbers have been added."""
        self._multiply(self._tile[:, : self._filled])
        self._filled = 0
        lower = np.tril_indices(len(self._matrix), -1)
        self._matrix[lower] = self._matrix.T[lower]
        return self._matrix

    def _fill(self, values: Array) -> None:
        """Keep numbers that are less than a tile."""
        stop = self._filled + values.shape[1]
        self._tile[:, self._filled : stop] = values
        self._filled = stop
        if stop == self._length:
            self._multiply(self._tile)
            self._filled = 0

    def _multiply(self, tile: Array) -> None:
        rows, numbers = tile.shape
        for row in range(rows):
            products = self._room[: rows - row, :numbers]
            np.multiply(tile[row:], tile[row], out=products)
            self._matrix[row, row:] += np.add.reduce(products, axis=1)
