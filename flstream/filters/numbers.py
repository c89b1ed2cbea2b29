"""The numbers of a model on its way: as they are in its body, and as a filter leaves them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from flstream.aggregation.elements import Elements, unit
from flstream.errors import ClientError, FlstreamError
from flstream.filters.block import (
    BLOCK,
    BlockFilter,
    Passage,
    Values,
    block_at,
    is_filtered,
)
from flstream.model.header import TensorInfo
from flstream.model.random_numbers import Floats
from flstream.model.source import Source


def block_range(spec: TensorInfo, index: int) -> tuple[int, int]:
    """Return the range of a tensor's block in bytes from the tensor's first."""
    size = BLOCK * unit(spec.dtype)
    return index * size, min((index + 1) * size, spec.nbytes)


def load_block(source: Source, spec: TensorInfo, index: int) -> Floats:
    """Read the numbers of a tensor's block.

    Args:
        source: Body that has a tensor of this name, dtype and shape.
        spec: The tensor.
        index: Index of the block.
    """
    start, stop = block_range(spec, index)
    first = source.layout.by_name[spec.name].start
    data = bytearray(stop - start)
    source.read(first + start, first + stop, memoryview(data))
    numbers = np.empty(len(data) // unit(spec.dtype))
    Elements(spec.dtype, memoryview(data)).load(slice(0, len(numbers)), numbers)
    return numbers


class SourceValues:
    """Numbers of a body, or their differences from another one.

    Args:
        source: The body.
        base: Body to take the differences from, which has all of these tensors; None for the
            numbers themselves.
        names: Names of the tensors that are there; None for all.

    Raises:
        ClientError: The other body lacks a tensor; the message names it.
    """

    def __init__(
        self, source: Source, base: Source | None, names: Collection[str] | None = None
    ) -> None:
        self.tensors: Sequence[TensorInfo] = [
            spec
            for spec in source.layout.tensors
            if is_filtered(spec) and (names is None or spec.name in names)
        ]
        self._source = source
        self._base = base
        for spec in self.tensors:
            if base is not None and spec.name not in base.layout.by_name:
                raise ClientError(
                    f"tensor {spec.name!r} of the update is not part of the model, so its change "
                    "cannot be filtered; leave it out"
                )

    def block(self, spec: TensorInfo, index: int) -> Floats:
        """Return the float64 numbers of a tensor's block."""
        numbers = load_block(self._source, spec, index)
        if self._base is not None:
            with np.errstate(invalid="ignore"):
                numbers -= load_block(self._base, spec, index)
        return numbers


class FilteredValues:
    """Numbers as a filter leaves them.

    A number that is not finite stays as it is: a filter that bounds numbers would hide it from the
    server, which refuses such an update.

    Args:
        values: Numbers that the filter is given.
        apply: The filter.
        passage: The model's site, round and direction.
        place: Place of the filter among those of its direction.
        name: Name of the filter, for messages.
    """

    def __init__(
        self, values: Values, apply: BlockFilter, passage: Passage, place: int, name: str
    ) -> None:
        self.tensors = values.tensors
        self._values = values
        self._apply = apply
        self._passage = passage
        self._place = place
        self._name = name

    def block(self, spec: TensorInfo, index: int) -> Floats:
        """Return the float64 numbers of a tensor's block.

        Raises:
            ClientError: The filter raised an error, or returned something else than as many
                numbers.
        """
        values = self._values.block(spec, index)
        strange = np.flatnonzero(~np.isfinite(values))
        before = values[strange]
        block = block_at(spec, index, self._passage, self._place)
        try:
            with np.errstate(invalid="ignore"):
                found = self._apply(values, block)
        except FlstreamError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # it may be the user's code
            raise ClientError(
                f"the filter {self._name} raised {type(error).__name__} at tensor {spec.name!r}: "
                f"{error}; mend the filter"
            ) from error
        if not isinstance(found, np.ndarray) or found.shape != values.shape:
            shape = list(np.shape(found))
            raise ClientError(
                f"the filter {self._name} returned {type(found).__name__} of shape {shape} for a "
                f"block of {len(values)} numbers of tensor {spec.name!r}; return as many numbers"
            )
        if np.iscomplexobj(found):
            raise ClientError(
                f"the filter {self._name} returned complex numbers for a block of tensor "
                f"{spec.name!r}; return floats"
            )
        numbers: Floats = np.ascontiguousarray(found, np.float64)
        if len(strange):
            numbers = numbers.copy()
            numbers[strange] = before
        return numbers


class RemainingValues:
    """Numbers of a part of a model's tensors.

    Args:
        values: Numbers of the model.
        names: Names of the tensors that are left.
    """

    def __init__(self, values: Values, names: Collection[str]) -> None:
        self.tensors = [spec for spec in values.tensors if spec.name in names]
        self._values = values

    def block(self, spec: TensorInfo, index: int) -> Floats:
        """Return the float64 numbers of a tensor's block."""
        return self._values.block(spec, index)
