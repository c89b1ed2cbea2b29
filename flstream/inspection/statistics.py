"""Statistics of tensors, computed block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flstream.inspection.elements import BLOCK, LARGEST, SMALLEST, Array, as_array, read_blocks
from flstream.model.body import Scratch, Source
from flstream.model.layout import TensorInfo

_BELOW_64_BITS = (1 << 64) - 1


class Statistics(NamedTuple):
    """Statistics of a tensor's elements.

    Minimum, maximum, mean and deviation are over the finite elements, and None if there are none.

    Attributes:
        finite: number of elements that are neither NaN nor infinite.
        non_finite: number of elements that are NaN or infinite.
        zeros: number of elements that equal 0.
        min: minimum; of complex elements, of their absolute values.
        max: maximum; of complex elements, of their absolute values.
        mean: mean; a complex number for complex elements.
        std: standard deviation of the population (divided by the count).
    """

    finite: int
    non_finite: int
    zeros: int
    min: float | int | None
    max: float | int | None
    mean: float | complex | None
    std: float | None

    def document(self) -> dict[str, object]:
        """Convert the statistics to JSON; a complex mean becomes a list of two numbers."""
        fields = self._asdict()
        if isinstance(self.mean, complex):
            fields["mean"] = [self.mean.real, self.mean.imag]
        return fields


def tensor_statistics(source: Source, spec: TensorInfo, scratch: Scratch) -> Statistics:
    """Compute the statistics of a tensor, in memory for a few blocks of it.

    Args:
        source: checkpoint with the tensor.
        spec: the tensor.
        scratch: memory for the source's reads.

    Returns:
        The statistics.

    Raises:
        CheckpointError: the tensor cannot be read.
    """
    tally = _StatisticsTally(spec.elements)
    with np.errstate(all="ignore"):  # non-finite elements are counted
        for block in read_blocks(source, spec, scratch):
            tally.add(as_array(spec.dtype, block))
    return tally.close(is_complex=spec.dtype in ("C64", "C128"))


class _StatisticsTally:
    """Statistics of a tensor, accumulated block by block."""

    def __init__(self, elements: int) -> None:
        self._count = 0
        self._finite = 0
        self._zeros = 0
        self._min: float | int | None = None
        self._max: float | int | None = None
        self._moments = Moments()
        self._imaginary = Moments()
        # Reused for all blocks: fresh pages would cost more than the computation.
        self._buffer = np.empty(min(BLOCK, elements))
        self._flags = np.empty(min(BLOCK, elements), np.bool_)

    def add(self, values: Array) -> None:
        """Add a block of bools, integers, floats or complex numbers."""
        self._count += len(values)
        if values.dtype.kind == "c":
            self._add_complex(values)
        elif values.dtype.kind == "f":
            self._add_floats(values)
        else:
            self._add_integers(values.view(np.uint8) if values.dtype.kind == "b" else values)

    def _add_floats(self, values: Array) -> None:
        low, high = float(values.min()), float(values.max())  # either is NaN if an element is
        if not (np.isfinite(low) and np.isfinite(high)):
            values = values[np.isfinite(values)]
            if not len(values):
                return
            low, high = float(values.min()), float(values.max())
        self._note(values, low, high)
        self._moments.add(self._widened(values), low, high)

    def _add_integers(self, values: Array) -> None:
        low, high = int(values.min()), int(values.max())
        self._note(values, low, high)
        if values.dtype.itemsize < 8:
            self._moments.add(self._widened(values), low, high)
        else:
            # Not every integer of 64 bits is in float64, but the distance from a block's minimum
            # is exact up to 2^53.
            above = values.view(np.uint64) - np.uint64(low & _BELOW_64_BITS)
            self._moments.add(self._widened(above), 0.0, float(high - low), shift=low)

    def _add_complex(self, values: Array) -> None:
        values = values[np.isfinite(values)]
        if not len(values):
            return
        sizes = np.hypot(values.real.astype(np.float64), values.imag.astype(np.float64))
        self._note(values, float(sizes.min()), float(sizes.max()))
        for moments, part in ((self._moments, values.real), (self._imaginary, values.imag)):
            moments.add(self._widened(part), float(part.min()), float(part.max()))

    def _note(self, values: Array, low: float | int, high: float | int) -> None:
        self._finite += len(values)
        zero = np.equal(values, 0, out=self._flags[: len(values)])
        self._zeros += int(np.count_nonzero(zero))
        self._min = low if self._min is None else min(self._min, low)
        self._max = high if self._max is None else max(self._max, high)

    def _widened(self, values: Array) -> Array:
        block = self._buffer[: len(values)]
        np.copyto(block, values)
        return block

    def close(self, *, is_complex: bool) -> Statistics:
        """Return the statistics of all blocks."""
        mean: float | complex | None = None
        deviation: float | None = None
        if self._finite:
            mean = float(self._moments.mean)
            deviation = float(self._moments.deviation)
            if is_complex:
                mean = complex(mean, float(self._imaginary.mean))
                deviation = float(np.hypot(self._moments.deviation, self._imaginary.deviation))
        return Statistics(
            finite=self._finite,
            non_finite=self._count - self._finite,
            zeros=self._zeros,
            min=self._min,
            max=self._max,
            mean=mean,
            std=deviation,
        )


class Moments:
    """Count, mean and sum of squared deviations, merged block by block.

    Within a block deviations are from its own mean, in float64, and what rounding left of their sum
    is taken off (the corrected two-pass algorithm); blocks are merged as in Chan, Golub and LeVeque
    1983, "Algorithms for computing the sample variance". So a small deviation is not lost beside a
    large mean. Blocks with squares outside the range of float64 are computed in long double.

    Attributes:
        count: number of values.
        mean: mean of the values; 0 without any.
        squares: sum of squared deviations from the mean.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.longdouble(0)
        self.squares = np.longdouble(0)

    def add(self, values: Array, low: float, high: float, shift: int = 0) -> None:
        """Add a block of values.

        Args:
            values: one-dimensional array of one or more finite float64 numbers; overwritten.
            low: minimum of the values.
            high: maximum of the values.
            shift: integer to be added to each value, for integers beyond 2^53, not all of which
                are in float64.
        """
        mean, squares = np.longdouble(low), np.longdouble(0)
        if low != high:
            mean, squares = _block(values, max(abs(low), abs(high)))
        self._merge(len(values), mean + np.longdouble(shift), squares)

    def _merge(self, count: int, mean: np.longdouble, squares: np.longdouble) -> None:
        total = self.count + count
        delta = mean - self.mean
        self.squares += squares + delta * delta * (self.count * count / total)
        self.mean += delta * (count / total)
        self.count = total

    @property
    def deviation(self) -> np.longdouble:
        """Standard deviation of the population: divided by the count, not by one less."""
        return np.longdouble(np.sqrt(self.squares / max(self.count, 1)))


def _block(values: Array, largest: float) -> tuple[np.longdouble, np.longdouble]:
    if not SMALLEST < largest < LARGEST:
        values = values.astype(np.longdouble)
    count = len(values)
    mean = values.sum() / count
    np.subtract(values, mean, out=values)
    rest = values.sum()
    squares = np.einsum("i,i->", values, values) - rest * rest / count
    return np.longdouble(mean + rest / count), np.longdouble(max(squares, 0))
