"""The numbers of a model on its way: as they are in its body, and as a filter leaves them."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from flstream.errors import ClientError, FlstreamError
from flstream.filters.block import BLOCK, BlockFilter, Passage, Values, block_at
from flstream.model.dtypes import FLOATS, load, numbers_in, unit
from flstream.model.header import TensorInfo
from flstream.model.random_numbers import Floats
from flstream.model.source import Scratch, Source, view_of


def load_block(source: Source, spec: TensorInfo, index: int) -> Floats:
    """Read the float64 numbers of a block of a tensor that a body has with this dtype and shape."""
    size = BLOCK * unit(spec.dtype)
    first = source.layout.by_name[spec.name].start + index * size
    stop = first + min(size, spec.nbytes - index * size)
    given = numbers_in(spec.dtype, view_of(source, first, stop, Scratch()))
    numbers = np.empty(len(given))
    load(given, numbers)
    return numbers


def source_values(source: Source, base: Source | None, names: Container[str]) -> Values:
    """Return the numbers of a body, or their differences from another one.

    Args:
        source: The body.
        base: Body to take the differences from, which has all of these tensors; None for the
            numbers themselves.
        names: Names of the tensors that are there.

    Raises:
        ClientError: The other body lacks a tensor; the message names it.
    """
    tensors = [
        spec for spec in source.layout.tensors if spec.dtype in FLOATS and spec.name in names
    ]
    for spec in tensors:
        if base is not None and spec.name not in base.layout.by_name:
            raise ClientError(
                f"tensor {spec.name!r} of the update is not part of the model, so its change "
                "cannot be filtered; leave it out"
            )

    def block(spec: TensorInfo, index: int) -> Floats:
        numbers = load_block(source, spec, index)
        if base is not None:
            numbers -= load_block(base, spec, index)
        return numbers

    return Values(tensors, block)


def filtered_values(
    values: Values, apply: BlockFilter, passage: Passage, place: int, name: str
) -> Values:
    """Return numbers as a filter leaves them.

    A number that is not finite stays as it is: a filter that bounds numbers would hide it from the
    server, which refuses such an update. An error of the filter's own, or a result that is no array
    of as many numbers, ends the reading with a ClientError.

    Args:
        values: Numbers that the filter is given.
        apply: The filter.
        passage: The model's site, round and direction.
        place: Place of the filter among those of its direction.
        name: Name of the filter, for messages.
    """

    def block(spec: TensorInfo, index: int) -> Floats:
        numbers = values.block(spec, index)
        strange = np.flatnonzero(~np.isfinite(numbers))
        before = numbers[strange]
        count = len(numbers)
        try:
            found = apply(numbers, block_at(spec, index, passage, place))
        except FlstreamError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # it may be the user's code
            raise ClientError(
                f"the filter {name} raised {type(error).__name__} at tensor {spec.name!r}: "
                f"{error}; mend the filter"
            ) from error
        if not isinstance(found, np.ndarray) or found.shape != (count,):
            shape = list(np.shape(found))
            raise ClientError(
                f"the filter {name} returned {type(found).__name__} of shape {shape} for a "
                f"block of {count} numbers of tensor {spec.name!r}; return as many numbers"
            )
        if np.iscomplexobj(found):
            raise ClientError(
                f"the filter {name} returned complex numbers for a block of tensor "
                f"{spec.name!r}; return floats"
            )
        made: Floats = np.ascontiguousarray(found, np.float64)
        if len(strange):
            made = made.copy()
            made[strange] = before
        return made

    return Values(values.tensors, block)
