"""Norm clipping: no update moves the model further than a given distance.

Bounding an update's norm bounds what one site can do to the model (Sun et al. 2019,
arXiv:1911.07963), and is half of differential privacy for users (McMahan et al. 2018,
arXiv:1710.06963).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from flstream.aggregation.cohort import Cohort
from flstream.aggregation.elements import FLOATS, Array, block_room, blocks
from flstream.aggregation.rules import Rule
from flstream.aggregation.steps import Steps
from flstream.aggregation.updates import Update
from flstream.errors import UpdateRefusedError
from flstream.model.body import Source


def clip_scales(
    base: Source,
    updates: Sequence[Update],
    rule: Rule,
    steps: Steps,
    on_range: Callable[[int], None],
) -> list[float] | None:
    """What to multiply each update's difference from the model by, so that it is short enough.

    It takes a pass over all updates, and calls ``on_range(0)`` after each range, as nothing is
    folded yet.

    Returns:
        Numbers from 0 to 1; None where the rule does not clip.

    Raises:
        UpdateRefusedError: an update does not fit the model, or its difference has no finite norm.
    """
    if rule.clip_norm is None:
        return None
    scales = []
    norms = _norms(base, updates, rule, steps, on_range)
    for update, norm in zip(updates, norms, strict=True):
        if not math.isfinite(norm):
            raise UpdateRefusedError(
                update.site,
                f"differs from the model by the L2 norm {norm}, which cannot be clipped; "
                "lower the learning rate",
            )
        scales.append(min(1.0, rule.clip_norm / norm) if norm else 1.0)
    return scales


def _norms(
    base: Source,
    updates: Sequence[Update],
    rule: Rule,
    steps: Steps,
    on_range: Callable[[int], None],
) -> list[float]:
    """The L2 norm of each update's difference, over the floats of it that are aggregated."""
    cohort = Cohort(base, updates, rule, steps, looking=True)
    sums = [_SquareSum() for _ in updates]
    room = block_room(FLOATS, steps.step)
    for start, stop in base.layout.ranges(steps.step):
        for part in cohort.each_part(start, stop, cohort.begin(start, stop)):
            if part.zone.dtype in FLOATS:
                for block in blocks(part.zone.numbers):
                    values = room[: block.stop - block.start]
                    part.differences(block, values)
                    sums[part.place].add(values)
        on_range(0)
    return [each.root() for each in sums]


class _SquareSum:
    """A sum of squares that does not depend on how the numbers were cut into blocks.

    They are dealt out to columns in turn. Each column is summed in order, and the sums of the
    columns are added exactly.
    """

    _COLUMNS = 256

    def __init__(self) -> None:
        self._sums = np.zeros(self._COLUMNS)
        self._next = 0

    def add(self, block: Array) -> None:
        """Take numbers, which are overwritten."""
        np.multiply(block, block, out=block)
        head = min(-self._next % self._COLUMNS, len(block))
        self._deal(block[:head])
        whole = (len(block) - head) // self._COLUMNS * self._COLUMNS
        rows = block[head : head + whole].reshape(-1, self._COLUMNS)
        if len(rows):
            # Over the first axis NumPy adds row after row, each to all columns at once.
            np.add(self._sums, rows[0], out=rows[0])
            np.add.reduce(rows, axis=0, out=self._sums)
        self._deal(block[head + whole :])

    def root(self) -> float:
        """The square root of the sum."""
        return math.sqrt(math.fsum(self._sums)) if np.isfinite(self._sums).all() else math.inf

    def _deal(self, squares: Array) -> None:
        self._sums[self._next : self._next + len(squares)] += squares
        self._next = (self._next + len(squares)) % self._COLUMNS
