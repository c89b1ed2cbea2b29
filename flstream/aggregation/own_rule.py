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
from flstream.errors import AggregationError, FlstreamError
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
        """Combine a block: see :data:`flstream.aggregation.methods.Combine`."""
        with user_code(f"{self.name}.fold", self.where):
            combined = self.rule.fold(values, weights)
        # Copied, since it is overwritten later, and may be part of what the rule keeps.
        return self._floats("fold", combined, values.shape[1])

    def weigh(self, gram: Array, weights: Array) -> Array:
        """Return the weights of the updates: none below 0, and at least one above 0."""
        with user_code(f"{self.name}.weigh", self.where):
            returned = self.rule.weigh(gram, weights)
        weights = self._floats("weigh", returned, len(gram))
        # A NaN is in no range, either.
        in_range = ((weights >= 0) & (weights <= MOST_WEIGHT)).all()
        if not in_range or not (weights >= LEAST_WEIGHT).any():
            shown = ", ".join(f"{weight:g}" for weight in weights[:8])
            raise AggregationError(
                f"{self.name}.weigh returned the weights {shown}{', ...' * (len(weights) > 8)}; "
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
                f"{self.name}.{function} returned a {type(returned).__name__}, which is no array "
                f"of {length} numbers: {error}; return a NumPy array"
            ) from error
        if floats.shape != (length,):
            raise AggregationError(
                f"{self.name}.{function} returned an array of shape {floats.shape}; "
                f"return one of shape ({length},)"
            )
        return floats


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
