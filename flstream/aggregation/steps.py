"""How finely a walk is cut, so that its buffers stay within a budget."""

from __future__ import annotations

from typing import NamedTuple

from flstream.aggregation.elements import BLOCK, INTEGERS, unit
from flstream.aggregation.rules import Rule
from flstream.model.layout import ALIGNMENT, Layout

RANGES_TOGETHER = 2
"""Updates whose ranges are folded together. Their sum goes through memory once for all of them."""

GROUPS_READ = 2
"""Groups of so many ranges that are in memory at once: one is read while another is folded."""

RANGES_READ = RANGES_TOGETHER * GROUPS_READ
"""Ranges of updates that are in memory at once."""

# Below this, Python's work for a range shows beside the work on its bytes. A longer step gains
# nothing.
_ENOUGH = 512 << 10
# Blocks of float64: the values of an update and of the model, their sum, and no more than three
# beside them, which rounding, an optimiser or a mean of integers needs.
_BLOCKS = 6


class Steps(NamedTuple):
    """How finely to cut a walk.

    Attributes:
        step: bytes folded at a time, a multiple of ``frame``.
        frame: longest frame in bytes in which updates are to be fetched.
    """

    step: int
    frame: int


def plan_steps(
    layout: Layout,
    rule: Rule,
    *,
    updates: int,
    chunk_size: int,
    memory_budget: int,
    partial: int = 0,
    summing: bool = False,
) -> Steps:
    """Choose a step such that all the walk's buffers stay within a budget.

    Args:
        layout: of the model. Small elements cost most: a byte is summed in eight.
        rule: of the walk. One that ranks holds a range of every update at once.
        updates: how many there are.
        chunk_size: longest frame allowed, a multiple of 16 bytes, or 0 where nothing is fetched.
        memory_budget: bytes that the buffers may take.
        partial: how many of the updates are partial. Each keeps up to a frame.
        summing: whether a partial sum is read and written too.

    Returns:
        The step and the frame. They are a few bytes where not even that fits.
    """
    codes = {spec.dtype for spec in layout.tensors}
    cost = max((_bytes_a_byte(code, rule, updates, summing) for code in codes), default=1)
    frames = 0
    if partial:
        # A range is received into one buffer and put together with what was left in another. Both
        # reach up to the end of a frame.
        cost, frames = cost + RANGES_READ, partial + 2 * RANGES_READ
    longest = chunk_size or _ENOUGH
    # A range that is shorter than a block is itself the block.
    in_blocks = max((-(-_BLOCKS * 8 // unit(code)) for code in codes), default=1)
    # Blocks are counted whole, or by a range's length: whichever leaves room for a longer step.
    return max(
        _largest(memory_budget - _BLOCKS * 8 * BLOCK, cost, frames, longest),
        _largest(memory_budget, cost + in_blocks, frames, longest),
    )


def _largest(room: int, cost: int, frames: int, longest: int) -> Steps:
    """The largest steps that fit: ``cost`` for each byte, and so many ``frames`` besides."""
    frame = min(longest, room // (cost + frames)) // ALIGNMENT * ALIGNMENT
    frame = max(frame, ALIGNMENT)
    largest = (room - frames * frame) // cost
    return Steps(step=frame * max(1, min(_ENOUGH, largest) // frame), frame=frame)


def _bytes_a_byte(dtype: str, rule: Rule, updates: int, summing: bool) -> int:
    """Bytes of buffers for each byte of a range."""
    # The ranges of updates that are folded or read ahead, the model's, the result's and the last.
    cost = RANGES_READ + 3
    wide = -(-8 // unit(dtype))
    if dtype in INTEGERS:
        cost += 1  # the sum of a difference and the model's range
    if rule.is_ranked:
        cost += updates * (1 if dtype in INTEGERS else wide)
    else:
        cost += wide + (1 if dtype in INTEGERS else 0)  # the sums, and the first update's range
    if summing:
        cost += 2 * wide
    return cost
