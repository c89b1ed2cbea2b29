"""How finely a walk is cut, so that its buffers stay within a budget."""

from __future__ import annotations

from typing import NamedTuple

from flstream.aggregation.ahead import RANGES_READ
from flstream.aggregation.elements import BLOCK, INTEGERS, unit
from flstream.aggregation.rules import Rule
from flstream.model.layout import ALIGNMENT, Layout

# Below this, Python's work for a range shows beside the work on its bytes.
_SMALLEST_STEP = 512 << 10
# Blocks of float64 do not grow with the step: the values of an update and of the model, their sum,
# and no more than three beside them, which rounding, an optimiser or a mean of integers needs.
_BLOCKS_BYTES = 6 * 8 * BLOCK


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
    costs = [_bytes_a_byte(code, rule, updates, summing) for code in _codes(layout)]
    cost, frames = max(costs, default=1), 0
    if partial:
        # A range is received into one buffer and put together with what was left in another. Both
        # reach up to the end of a frame.
        cost, frames = cost + 1, partial + 2
    room = memory_budget - _BLOCKS_BYTES
    frame = min(chunk_size or _SMALLEST_STEP, room // (cost + frames) // ALIGNMENT * ALIGNMENT)
    frame = max(frame, ALIGNMENT)
    largest = (room - frames * frame) // cost
    return Steps(step=frame * max(1, min(_SMALLEST_STEP, largest) // frame), frame=frame)


def _codes(layout: Layout) -> set[str]:
    return {spec.dtype for spec in layout.tensors}


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
