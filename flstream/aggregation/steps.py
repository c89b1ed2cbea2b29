"""The length of a walk's ranges, chosen so that its buffers stay within a budget."""

from __future__ import annotations

from flstream.aggregation.elements import BLOCK
from flstream.aggregation.rules import AggregationRule
from flstream.job.aggregation_section import is_own
from flstream.model.digests import BLOCK_BYTES
from flstream.model.dtypes import unit
from flstream.model.layout import ALIGNMENT, Layout

RANGES_TOGETHER = 2
"""Number of updates whose ranges are folded together, reading and writing their sum once."""

GROUPS_READ = 2
"""Number of groups of such ranges in memory: one is read while another is folded."""

TILE_NUMBERS = 1 << 15
"""Numbers of all updates that are multiplied with each other at a time, where they are compared.

With their products they take 512 KiB, half of the least budget; twice as many are 1.1 times as
fast.
"""

# The frames of a download, which are then read without a copy.
_LONGEST = 2 << 20
# Blocks of float64: the values of an update and of the model, their sum, and at most three more,
# which rounding or an optimizer needs.
_BLOCKS = 6


def plan_step(
    layout: Layout,
    rule: AggregationRule,
    *,
    updates: int,
    memory_budget: int,
    buffered: int = 0,
    summing: bool = False,
) -> int:
    """Choose the bytes that a walk folds at a time, within a budget and up to 2 MiB.

    A walk has these buffers. For each byte of a range: a byte for each update that is being read or
    folded, the model's range, the result's and the one being written; the float64 sums of the
    range, or all updates' float64 values where a rule needs these at once, and a copy for a user's
    own rule; and a frame, as long as a range, of each update that is received or decoded in frames.
    Beside these, blocks of float64 and, for rules that compare updates, a tile and its products.
    So a step follows from layout, rule, number of updates and budget alone. No bit of a model
    depends on it.

    Args:
        layout: Layout of the model. Small elements cost most: a byte is summed in eight.
        rule: Rule of the walk.
        updates: Number of updates.
        memory_budget: Bytes that the buffers may take.
        buffered: Number of the updates of which a frame is kept, as long as a step at most.
        summing: Whether a partial sum is read and written too.

    Returns:
        A multiple of 16. It is 16 where the budget does not even suffice for that.
    """
    codes = {spec.dtype for spec in layout.tensors}
    cost = max((_bytes_a_byte(code, rule, updates, summing) for code in codes), default=1)
    cost += buffered
    if rule.compares:
        # In float64, or of as many numbers as there are updates.
        memory_budget -= 2 * 8 * max(TILE_NUMBERS, updates)
    # A range that is shorter than a block is itself the block. Blocks are counted whole, or by a
    # range's length: whichever leaves room for a longer step.
    in_blocks = max((-(-_BLOCKS * 8 // unit(code)) for code in codes), default=1)
    room = max((memory_budget - _BLOCKS * 8 * BLOCK) // cost, memory_budget // (cost + in_blocks))
    step = min(room, _LONGEST)
    # Blocks that are at hand already are not fetched.
    whole = BLOCK_BYTES if step > BLOCK_BYTES else ALIGNMENT
    return max(step // whole * whole, ALIGNMENT)


def _bytes_a_byte(dtype: str, rule: AggregationRule, updates: int, summing: bool) -> int:
    """Return the bytes of buffers for each byte of a range."""
    wide = -(-8 // unit(dtype))
    if is_own(rule.method):
        values = 2 * updates * wide
    else:
        values = updates * wide if rule.holds_ranges else wide
    return RANGES_TOGETHER * GROUPS_READ + 3 + values + (2 * wide if summing else 0)
