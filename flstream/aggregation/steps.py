"""The length of a walk's ranges, chosen so that its buffers stay within a budget."""

from __future__ import annotations

from typing import NamedTuple

from flstream.aggregation.elements import BLOCK, INTEGERS, unit
from flstream.aggregation.rules import AggregationRule
from flstream.job.aggregation_method import is_own
from flstream.model.digests import BLOCK_BYTES
from flstream.model.layout import ALIGNMENT, Layout

RANGES_TOGETHER = 2
"""Number of updates whose ranges are folded together, reading and writing their sum once."""

GROUPS_READ = 2
"""Number of groups of such ranges in memory: one is read while another is folded."""

RANGES_READ = RANGES_TOGETHER * GROUPS_READ
"""Number of updates' ranges in memory."""

TILE_NUMBERS = 1 << 15
"""Numbers of all updates that are multiplied with each other at a time, where they are compared.

With their products they take 512 KiB, half of the least budget; twice as many are 1.1 times as
fast.
"""

# Below this, Python's overhead for a range is noticeable beside the work on its bytes. A longer
# step gains nothing.
_ENOUGH = 512 << 10
# Bytes of the longest frame of an update, however long the model's chunks are: a walk has several
# frames in memory, and longer ones save it no time.
_MOST_FRAME = 2 << 20
# Blocks of float64: the values of an update and of the model, their sum, and at most three more,
# which rounding, an optimizer or a mean of integers needs.
_BLOCKS = 6


class Steps(NamedTuple):
    """Lengths of a walk's ranges and frames.

    Attributes:
        step: Bytes folded at a time, a multiple of ``frame``.
        frame: Length in bytes of the longest frame in which updates are to be fetched.
    """

    step: int
    frame: int


def plan_steps(
    layout: Layout,
    rule: AggregationRule,
    *,
    updates: int,
    chunk_size: int,
    memory_budget: int,
    partial: int = 0,
    summing: bool = False,
) -> Steps:
    """Choose a step so that all the walk's buffers stay within a budget.

    Args:
        layout: Layout of the model. Small elements cost most: a byte is summed in eight.
        rule: Rule of the walk. One that ranks holds a range of every update at once.
        updates: Number of updates.
        chunk_size: Length in bytes of the longest frame allowed, a multiple of 16; 0 where nothing
            is
        fetched.
        memory_budget: Bytes that the buffers may take.
        partial: Number of the updates that are partial. Each keeps up to a frame.
        summing: Whether a partial sum is read and written too.

    Returns:
        The step and the frame. They are a few bytes where the budget does not even suffice for
        that.
    """
    codes = {spec.dtype for spec in layout.tensors}
    cost = max((_bytes_a_byte(code, rule, updates, summing) for code in codes), default=1)
    if rule.compares:
        # The tile and its products, in float64, or of as many numbers as there are updates.
        memory_budget -= 2 * 8 * max(TILE_NUMBERS, updates)
    frames = 0
    if partial:
        # A range is received into one buffer, and joined with the rest of the last one in another.
        # Both reach up to the end of a frame.
        cost, frames = cost + RANGES_READ, partial + 2 * RANGES_READ
    longest = min(chunk_size or _ENOUGH, _MOST_FRAME)
    # A range that is shorter than a block is itself the block.
    in_blocks = max((-(-_BLOCKS * 8 // unit(code)) for code in codes), default=1)
    # Blocks are counted whole, or by a range's length: whichever leaves room for a longer step.
    return max(
        _largest(memory_budget - _BLOCKS * 8 * BLOCK, cost, frames, longest),
        _largest(memory_budget, cost + in_blocks, frames, longest),
    )


def _largest(room: int, cost: int, frames: int, longest: int) -> Steps:
    """Return the largest steps for which ``cost`` bytes for each byte and ``frames`` frames fit."""
    frame = min(longest, room // (cost + frames)) // ALIGNMENT * ALIGNMENT
    if frame > BLOCK_BYTES:  # so that blocks which are here already are not fetched
        frame = frame // BLOCK_BYTES * BLOCK_BYTES
    frame = max(frame, ALIGNMENT)
    largest = (room - frames * frame) // cost
    return Steps(step=frame * max(1, min(_ENOUGH, largest) // frame), frame=frame)


def _bytes_a_byte(dtype: str, rule: AggregationRule, updates: int, summing: bool) -> int:
    """Return the bytes of buffers for each byte of a range."""
    # The ranges of updates that are folded or read ahead, the model's, the result's and the last.
    cost = RANGES_READ + 3
    wide = -(-8 // unit(dtype))
    if dtype in INTEGERS:
        cost += 1  # the sum of a difference and the model's range
    if is_own(rule.method):
        cost += 2 * updates * wide  # and a copy that the rule makes
    elif rule.holds_ranges:
        cost += updates * (1 if dtype in INTEGERS else wide)
    else:
        cost += wide + (1 if dtype in INTEGERS else 0)  # the sums, and the first update's range
    if summing:
        cost += 2 * wide
    return cost
