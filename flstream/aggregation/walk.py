"""The walk: one pass over the body, folding range k of every update into range k of the next model.

It needs a few ranges of memory, whatever the model's size and however many updates there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flstream.aggregation.fold import Fold
from flstream.errors import LayoutError
from flstream.model.body import Scratch, Source
from flstream.model.checkpoint import BodyDigest, FileSink
from flstream.model.layout import ALIGNMENT

ParamsType = Literal["FULL", "DIFF"]

# Below this, Python's work for a range shows beside the work on its bytes.
_SMALLEST_STEP = 512 << 10
# What a step of one byte may cost. An element of one byte is summed in eight, beside the update's
# range, the base's, and the result. The worst is an 8-bit float of a difference: both ranges are
# widened to four bytes as well, and the mean is rounded into a copy.
_BYTES_A_STEP = 8 + 3 + 2 * 4 + 1


@dataclass(frozen=True)
class Update:
    """What a site sends back: a source of the same layout as the model.

    Attributes:
        site: whose it is.
        source: its bytes, read once from front to back.
        weight: its share in the mean, before dividing by the sum of all.
        params_type: ``FULL`` for the new weights, ``DIFF`` for new minus old.
    """

    site: str
    source: Source
    weight: float
    params_type: ParamsType = "FULL"


class Steps(NamedTuple):
    """How finely to cut a walk.

    Attributes:
        step: bytes folded at a time, a multiple of ``frame``.
        frame: longest frame in bytes in which updates are to be fetched.
    """

    step: int
    frame: int


def plan_steps(chunk_size: int, memory_budget: int) -> Steps:
    """Choose a step for a chunk size such that the walk's buffers stay within a budget.

    Args:
        chunk_size: longest frame allowed, a multiple of 16 bytes, or 0 where nothing is fetched.
        memory_budget: bytes that the buffers may take.
    """
    largest = memory_budget // _BYTES_A_STEP // ALIGNMENT * ALIGNMENT
    frame = min(chunk_size or _SMALLEST_STEP, largest)
    whole_frames = max(1, min(_SMALLEST_STEP, largest) // frame)
    return Steps(step=frame * whole_frames, frame=frame)


def fold_updates(
    base: Source,
    updates: Sequence[Update],
    fold: Fold,
    sink: FileSink,
    step: int,
    on_range: Callable[[int], None],
) -> str:
    """Fold updates into the next model.

    Args:
        base: the model that the sites started from.
        updates: one or more, always in the same order, since float sums depend on it.
        fold: how to combine them.
        sink: takes the next model. It is left unfinished: making it durable is the caller's.
        step: bytes at a time.
        on_range: called with the number of bytes folded so far after each range.

    Returns:
        The digest of the next model.

    Raises:
        LayoutError: an update does not have the base's layout; the message names site and tensor.
    """
    layout = base.layout
    for update in updates:
        difference = layout.difference(update.source.layout)
        if difference:
            raise LayoutError(f"the update of {update.site} does not fit the model: {difference}")
    digest = BodyDigest(layout)
    update_scratch, base_scratch = Scratch(), Scratch()
    for start, stop in layout.ranges(step):
        fold.begin(layout.runs(start, stop))
        for update in updates:
            data = _joined(update.source.views(start, stop, update_scratch))
            if update.params_type == "DIFF":
                old = _joined(base.views(start, stop, base_scratch))
                fold.add_difference(data, old, update.weight)
            else:
                fold.add(data, update.weight)
        (out,) = sink.views(start, stop)
        fold.finish(out)
        sink.commit(start, stop)
        digest.update([out])
        on_range(stop)
    return digest.hexdigest()


def _joined(views: Sequence[memoryview]) -> memoryview:
    # A remote source and a file give one view; tensors in memory give one each. The copy must be
    # writable like the others: torch warns of a buffer that is not.
    return views[0] if len(views) == 1 else memoryview(bytearray().join(views))
