"""Aggregation methods: the fold of each, and the weights that it gives updates.

A method is a built-in one, or a user's own rule from a file beside the job.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np

from flstream.aggregation.elements import Array, blocks
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.regions import Region
from flstream.aggregation.rules import LEAST_WEIGHT, MOST_WEIGHT, AggregationRule
from flstream.aggregation.update_set import Fold, UpdatePart
from flstream.debugging import code_failed
from flstream.errors import AggregationError, FlstreamError
from flstream.job.aggregation_section import METHODS, is_own
from flstream.job.code import make

Combine = Callable[[Array, Array], Array]
"""Function of the values of a block, of shape (updates, numbers), and of the updates' weights.

The values are those of the updates that have the tensor, in the cohort's order; it may overwrite
them. It returns the new values, of shape (numbers,).
"""

Weigh = Callable[[Array, Array], Array]
"""Function that weighs updates for the fold, from the inner products of their differences.

These are the differences from the model, after clipping, so the products are of shape (n, n); the
second argument has the updates' own weights. It returns new weights, 0 or more, of which the ratios
alone count: the mean divides by their sum. An update whose weight is below
:data:`flstream.aggregation.rules.LEAST_WEIGHT` is left out.
"""

Combination = tuple[Fold, Weigh | None]
"""The fold of updates; and, for a method that compares whole updates first, the function that
gives them their weights in it. For other methods it is None."""


def combination(rule: AggregationRule, updates: int) -> Combination:
    """Make the fold of a rule for a number of updates, and its weighing."""
    if not is_own(rule.method):
        make = resolve_name(f"flstream.aggregation.{METHODS[rule.method].make}")
        combined: Combination = make(updates, **rule.args)
        return combined
    own = OwnRule(rule.method, rule.args)
    fold: Fold = CoordinateFold(own.fold) if own.folds else WeightedMean()
    return fold, own.weigh if own.weighs else None


class CoordinateFold:
    """Fold that combines the values of each coordinate of all updates, in float64."""

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._values: list[Array] = []
        self._weights: list[list[float]] = []
        self._buffer = np.empty(0)

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin a range."""
        shapes = [(region.carriers.bit_count(), region.numbers) for region in regions]
        starts = list(accumulate((count * numbers for count, numbers in shapes), initial=0))
        if len(self._buffer) < starts[-1]:
            self._buffer = np.empty(starts[-1])
        self._weights = [[] for _ in regions]
        self._values = [
            self._buffer[start:stop].reshape(shape)
            for (start, stop), shape in zip(pairwise(starts), shapes, strict=True)
        ]

    def add(self, index: int, parts: Sequence[UpdatePart], *, are_last: bool) -> None:
        """Add the parts of further updates for a region."""
        weights = self._weights[index]
        for part in parts:
            row = self._values[index][len(weights)]
            for block in blocks(len(row)):
                part.reals(block, row[block])
            weights.append(part.weight)

    def result(self, index: int, block: slice) -> Array:
        """Return the combined values of a block of a region."""
        return self._combine(self._values[index][:, block], np.array(self._weights[index]))


class Folds(Protocol):
    """A rule that combines values coordinate by coordinate."""

    def fold(self, values: Array, weights: Array) -> Array:
        """Return the combined values of a block."""
        ...


class Weighs(Protocol):
    """A rule that weights updates by how they lie to each other."""

    def weigh(self, gram: Array, weights: Array) -> Array:
        """Return the weight of each update."""
        ...


class OwnRule:
    """A user's own rule, made anew for each walk so that no state of it outlives one.

    Attributes:
        name: Name of its class, for messages.
        where: Path of its file.
        rule: The object of the user's class.
        folds: Whether it combines values coordinate by coordinate.
        weighs: Whether it weighs updates.
    """

    def __init__(self, method: str, args: Mapping[str, Any]) -> None:
        self.where, _, name = method.rpartition(":")
        self.name = f"{Path(self.where).name}:{name}"
        with user_code(self.name, self.where):
            self.rule: Any = make(method, args)
        self.folds = callable(getattr(self.rule, "fold", None))
        self.weighs = callable(getattr(self.rule, "weigh", None))

    def fold(self, values: Array, weights: Array) -> Array:
        """Combine a block: see :data:`Combine`."""
        with user_code(f"{self.name}.fold", self.where):
            combined = self.rule.fold(values, weights)
        # Copied, since it is overwritten later, and may be part of what the rule keeps.
        return floats_of(f"{self.name}.fold", combined, values.shape[1:]).copy()

    def weigh(self, gram: Array, weights: Array) -> Array:
        """Return the weights of the updates: none below 0, and at least one above 0."""
        with user_code(f"{self.name}.weigh", self.where):
            returned = self.rule.weigh(gram, weights)
        weights = floats_of(f"{self.name}.weigh", returned, weights.shape)
        # A NaN is in no range, either.
        in_range = ((weights >= 0) & (weights <= MOST_WEIGHT)).all()
        if not in_range or not (weights >= LEAST_WEIGHT).any():
            shown = ", ".join(f"{weight:g}" for weight in weights[:8])
            raise AggregationError(
                f"{self.name}.weigh returned the weights {shown}{', ...' * (len(weights) > 8)}; "
                "return finite ones of at least 0, not all of them 0"
            )
        return weights


def floats_of(what: str, returned: Any, shape: Sequence[int], tensor: str = "") -> Array:
    """Return what a user's code has returned as float64 of a shape.

    Args:
        what: Name of the code, for messages.
        returned: What it has returned.
        shape: The shape that is due.
        tensor: Name of the tensor that it is for; empty for a block of all.

    Raises:
        AggregationError: It is no array of real numbers, or of another shape.
    """
    of = f" for tensor {tensor!r}" if tensor else ""
    try:
        floats = np.asarray(returned)
        if floats.dtype.kind not in "fiub":
            raise TypeError(f"it has the type {floats.dtype}")
    except (TypeError, ValueError) as error:
        raise AggregationError(
            f"{what} returned a {type(returned).__name__}{of}, which is no array of real numbers: "
            f"{error}; return a NumPy array"
        ) from error
    if floats.shape != tuple(shape):
        raise AggregationError(
            f"{what} returned an array of shape {floats.shape}{of}; return one of shape "
            f"{tuple(shape)}"
        )
    return np.ascontiguousarray(floats, np.float64).reshape(floats.shape)


@contextmanager
def user_code(what: str, where: str) -> Iterator[None]:
    """Name the user's line in an error that the user's code raises.

    Args:
        what: Name of the code.
        where: Path of its file.
    """
    try:
        yield
    except FlstreamError:  # a sentence already, or a site's refusal
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        code_failed(error)
        lines = traceback.extract_tb(error.__traceback__)
        own = [f" in line {frame.lineno}" for frame in lines if frame.filename == where]
        raise AggregationError(
            f"{what} raised {type(error).__name__}{''.join(own[-1:])}: "
            f"{error}; mend the rule, and start the run again"
        ) from error
