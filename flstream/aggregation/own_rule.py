"""A user's own rule for combining updates, from a file beside the job."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flstream.aggregation.elements import Array
from flstream.aggregation.rules import LEAST_WEIGHT, MOST_WEIGHT
from flstream.debugging import code_failed
from flstream.errors import AggregationError
from flstream.job.code import make


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
    """A user's own rule, made anew for each walk so that no state of it outlives one."""

    def __init__(self, method: str, args: Mapping[str, Any]) -> None:
        self._where, _, name = method.rpartition(":")
        self._name = f"{Path(self._where).name}:{name}"
        with self._guarded(self._name):
            self._rule = make(method, args)
        self.folds = callable(getattr(self._rule, "fold", None))
        self.weighs = callable(getattr(self._rule, "weigh", None))

    def fold(self, values: Array, weights: Array) -> Array:
        """Combine a block: see :data:`flstream.aggregation.methods.Combine`."""
        with self._guarded(f"{self._name}.fold"):
            combined = self._rule.fold(values, weights)
        # Copied, since it is overwritten later, and may be part of what the rule keeps.
        return self._floats("fold", combined, values.shape[1])

    def weigh(self, gram: Array, weights: Array) -> Array:
        """Return the weights of the updates: none below 0, and at least one above 0."""
        with self._guarded(f"{self._name}.weigh"):
            returned = self._rule.weigh(gram, weights)
        weights = self._floats("weigh", returned, len(gram))
        # A NaN is in no range, either.
        in_range = ((weights >= 0) & (weights <= MOST_WEIGHT)).all()
        if not in_range or not (weights >= LEAST_WEIGHT).any():
            shown = ", ".join(f"{weight:g}" for weight in weights[:8])
            raise AggregationError(
                f"{self._name}.weigh returned the weights {shown}{', ...' * (len(weights) > 8)}; "
                "return finite ones of at least 0, not all of them 0"
            )
        return weights

    def _floats(self, function: str, returned: Any, length: int) -> Array:
        try:
            floats = np.array(returned)
            if np.iscomplexobj(floats):
                raise TypeError("it gave complex numbers, and floats are due")
            floats = floats.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise AggregationError(
                f"{self._name}.{function} returned a {type(returned).__name__}, which is no array "
                f"of {length} numbers: {error}; return a NumPy array"
            ) from error
        if floats.shape != (length,):
            raise AggregationError(
                f"{self._name}.{function} returned an array of shape {floats.shape}; "
                f"return one of shape ({length},)"
            )
        return floats

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Name the user's line in an error that the user's code raises."""
        try:
            yield
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            code_failed(error)
            lines = traceback.extract_tb(error.__traceback__)
            own = [f" in line {frame.lineno}" for frame in lines if frame.filename == self._where]
            raise AggregationError(
                f"{what} raised {type(error).__name__}{''.join(own[-1:])}: "
                f"{error}; mend the rule, and start the run again"
            ) from error
