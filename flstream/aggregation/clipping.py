"""Norm clipping: bounds the distance that each update moves the model.

Bounding an update's norm bounds the influence of a site on the model (Sun et al. 2019,
arXiv:1911.07963), and is half of differential privacy for users (McMahan et al. 2018,
arXiv:1710.06963). The norm may follow a quantile of the updates' norms, privately: algorithm 1 of
Andrew et al. 2021 (arXiv:1905.03871), with the geometric update.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flstream.aggregation.elements import Array, block_room, blocks
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_set import UpdateSet
from flstream.errors import UpdateRefusedError
from flstream.model.dtypes import FLOATS


def clip_scales(
    updates: Sequence[CollectedUpdate],
    norms: Sequence[float],
    limit: float | Literal["median"] | None,
) -> list[float] | None:
    """Return the factors that bring the updates' L2 norms down to a limit.

    ``norms`` are those of the updates' differences from the model. A limit of None bounds nothing,
    and gives no factors.
    """
    for update, norm in zip(updates, norms, strict=True):
        if not math.isfinite(norm):
            raise UpdateRefusedError(
                update.site,
                f"differs from the model by the L2 norm {norm}, which cannot be clipped or "
                "compared with others; lower the learning rate",
            )
    if limit is None:
        return None
    most = statistics.median(norms) if limit == "median" else limit
    scales = [min(1.0, most / norm) if norm else 1.0 for norm in norms]
    for update, scale in zip(updates, scales, strict=True):
        update.is_clipped = scale < 1.0
    return scales


def difference_norms(
    cohort: UpdateSet, updates: int, on_range: Callable[[int], None]
) -> list[float]:
    """Compute the L2 norm of each update's difference, over its aggregated floats."""
    sums = [_SquareSum() for _ in range(updates)]
    room = block_room(FLOATS, cohort.step)
    for _, _, regions, contributions in cohort.ranges():
        for index, parts, _ in contributions:
            if regions[index].dtype in FLOATS and not regions[index].body:
                for part in parts:
                    for block in blocks(part.region.numbers):
                        values = room[: block.stop - block.start]
                        part.differences(block, values)
                        sums[part.place].add(values)
        on_range(0)
    return [square_sum.root() for square_sum in sums]


class _SquareSum:
    """Sum of squares that does not depend on how the numbers are cut into blocks.

    The numbers are distributed over columns in turn. Each column is summed in order, and the sums
    of the columns are added exactly.
    """

    _COLUMNS = 256

    def __init__(self) -> None:
        self._sums = np.zeros(self._COLUMNS)
        self._next = 0

    def add(self, block: Array) -> None:
        """Add numbers, which are overwritten."""
        np.multiply(block, block, out=block)
        head = min(-self._next % self._COLUMNS, len(block))
        self._deal(block[:head])
        whole = (len(block) - head) // self._COLUMNS * self._COLUMNS
        rows = block[head : head + whole].reshape(-1, self._COLUMNS)
        if len(rows):
            # Over the first axis, NumPy adds row after row, each to all columns at once.
            np.add(self._sums, rows[0], out=rows[0])
            np.add.reduce(rows, axis=0, out=self._sums)
        self._deal(block[head + whole :])

    def root(self) -> float:
        """Return the square root of the sum."""
        return math.sqrt(math.fsum(self._sums)) if np.isfinite(self._sums).all() else math.inf

    def _deal(self, squares: Array) -> None:
        self._sums[self._next : self._next + len(squares)] += squares
        self._next = (self._next + len(squares)) % self._COLUMNS


@dataclass(frozen=True)
class AdaptiveNorm:
    """The step of the clipping norm after a fold."""

    target_quantile: float  # fraction of updates whose norm is to be within the clipping norm
    learning_rate: float  # how fast the norm follows
    cohort: int  # number that counts are divided by: that of the sites that are expected
    count_stddev: float  # standard deviation of the noise on the count

    def after(self, norm: float, received: int, clipped: int, noise: float) -> float:
        """Return the clipping norm of the next fold.

        As in the paper, an update counts 1/2 where it is within the norm and -1/2 where it is not,
        so that one site more or less changes the sum by 1/2 only. One that sent nothing counts 0.

        Args:
            norm: Clipping norm of the fold.
            received: Number of updates that were folded.
            clipped: Number of those that were scaled down.
            noise: Standard normal number.
        """
        count = (received - clipped) - received / 2 + self.count_stddev * noise
        fraction = count / self.cohort + 0.5
        step = math.exp(-self.learning_rate * (fraction - self.target_quantile))
        # Implementations of exp differ in the last bits; the norm must not.
        return float(f"{norm * step:.12g}")
