"""Statistics of tensors, computed block by block."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from flstream.inspection.elements import as_array, read_blocks, widened
from flstream.model.body import Scratch, Source
from flstream.model.layout import TensorInfo


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of a tensor's finite elements; None without any.

    Attributes:
        finite: number of elements that are neither NaN nor infinite.
        non_finite: number of elements that are NaN or infinite.
        nan: number of elements that are NaN.
        zeros: number of elements that equal 0.
        min: minimum; of complex elements, of their absolute values.
        max: maximum; of complex elements, of their absolute values.
        mean: mean; a complex number for complex elements.
        std: standard deviation of the population (divided by the count).
        norm: Euclidean norm.
    """

    finite: int
    non_finite: int
    nan: int
    zeros: int
    min: float | int | None = None
    max: float | int | None = None
    mean: float | complex | None = None
    std: float | None = None
    norm: float | None = None


def tensor_statistics(source: Source, spec: TensorInfo, scratch: Scratch) -> Statistics:
    """Compute the statistics of a tensor, in memory for a few blocks of it.

    Within a block deviations are from its own mean, and what rounding left of their sum is taken
    off (the corrected two-pass algorithm); blocks are merged as in Chan, Golub and LeVeque 1983,
    "Algorithms for computing the sample variance". So a large mean hides no small deviation.

    Raises:
        CheckpointError: the tensor cannot be read.
    """
    finite = nan = zeros = 0
    lows, highs = [], []
    mean, squares = np.clongdouble(0), np.longdouble(0)  # squares of deviations from the mean
    with np.errstate(all="ignore"):  # non-finite elements are counted
        for block in read_blocks(source, spec, scratch):
            values = as_array(spec.dtype, block)
            is_finite = np.isfinite(values)
            if not is_finite.all():
                nan += int(np.count_nonzero(np.isnan(values)))
                values = values[is_finite]
            count = len(values)
            if not count:
                continue
            zeros += int(np.count_nonzero(values == 0))
            wide = widened(values)
            sizes = np.abs(wide) if wide.dtype.kind == "c" else values
            lows.append(sizes.min())
            highs.append(sizes.max())
            # From the first value on: numbers that are all alike have exactly that mean.
            first = wide[0]
            wide -= first
            center = wide.mean()
            wide -= center
            rest = wide.sum()
            parts = wide.view(wide.real.dtype)  # einsum has no threads, which BLAS's dot has
            own = max(np.einsum("i,i->", parts, parts) - abs(rest) ** 2 / count, 0)
            delta = np.clongdouble(first) + center + rest / count - mean
            squares += own + abs(delta) ** 2 * (np.longdouble(finite) * count / (finite + count))
            mean += delta * (np.longdouble(count) / (finite + count))
            finite += count
    counts = finite, spec.elements - finite, nan, zeros
    if not finite:
        return Statistics(*counts)
    number = int if sizes.dtype.kind in "iub" else float
    return Statistics(
        *counts,
        min=number(min(lows)),
        max=number(max(highs)),
        mean=complex(mean) if spec.dtype in ("C64", "C128") else float(mean.real),
        std=in_float64(np.sqrt(squares / finite)),
        norm=in_float64(np.sqrt(squares + finite * abs(mean) ** 2)),
    )


def in_float64(value: np.longdouble) -> float:
    """Convert a number that is not negative, at most to the greatest finite float64."""
    return float(min(value, np.longdouble(sys.float_info.max)))
