"""Search for the update that is the cause where the numbers of a next model are not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flstream.aggregation.elements import FLOATS, Array, block_room, blocks, first_not_finite
from flstream.aggregation.regions import UpdatePart
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.update_set import UpdateSet, element_at
from flstream.errors import UpdateRefusedError
from flstream.model.source import Source


def find_not_finite(
    base: Source,
    updates: Sequence[UpdateSource],
    rule: AggregationRule,
    steps: Steps,
    folded: int,
    on_range: Callable[[int], None],
) -> None:
    """Read updates again, up to the range after byte ``folded``, and check every number.

    It calls ``on_range(folded)`` after each range, since no more is folded.

    Raises:
        UpdateRefusedError: An update has an infinity or a NaN there, or in a mean, a number that
            becomes one when it is multiplied by the update's weight.
    """
    cohort = UpdateSet(base, updates, rule, steps, checks_finite=True)
    room = block_room(FLOATS, steps.step)
    for start, stop in base.layout.ranges(steps.step):
        if start > folded:
            return
        for part in cohort.each_part(start, stop, cohort.begin(start, stop)):
            if part.region.dtype in FLOATS:
                for block in blocks(part.region.numbers):
                    values = room[: block.stop - block.start]
                    part.sent(block, values)
                    if rule.method == "mean":
                        _check_product(values, block.start, part, updates[part.place].site, base)
        on_range(folded)


def _check_product(values: Array, start: int, part: UpdatePart, site: str, base: Source) -> None:
    """Refuse an update with a number that its weight takes beyond float64.

    Args:
        values: Numbers of the update as they were sent, which are multiplied in place.
        start: Index of the first of them in the part's region.
        part: Part of the update that has them.
        site: Name of the site.
        base: Model that the sites started from.
    """
    np.multiply(values, part.weight, out=values)
    index = first_not_finite(values, start)
    if index is not None:
        where = element_at(base.layout, part.region, index)
        raise UpdateRefusedError(
            site,
            f"cannot be added up: {where}, times the weight {part.weight:g}, is more than a "
            "float64 holds; lower the learning rate, or the number of examples",
        )
