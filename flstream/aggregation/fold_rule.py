"""Rules of a workflow's own for a fold or a server step, in place of the job's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from flstream.errors import WorkflowError

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array

Base = Literal["own", "model", "zero"]
_BASES: tuple[Base, ...] = ("own", "model", "zero")


@dataclass(frozen=True)
class FoldRule:
    """Rule of a fold of floats: ``body + scale * sum of w_i (update_i - base_i)``.

    Integers and bools of such a body take the mean, weighted by the updates' own weights.

    Attributes:
        weights: The weights ``w_i``: one for each update, in the order in which they are folded;
            the same number for all; or None for the updates' own, their numbers of examples.
        normalise: Whether the sum is divided by that of the weights.
        scale: Factor of the sum.
        base: Body that an update is compared with: ``"own"`` for the one that it started from,
            ``"model"`` for the one that it is folded into, or ``"zero"`` where what was sent is a
            difference already.
    """

    weights: Sequence[float] | float | None = None
    normalise: bool = False
    scale: float = 1.0
    base: Base = "own"

    def __post_init__(self) -> None:
        """Refuse values that make no rule."""
        if self.base not in _BASES:
            raise WorkflowError(f"FoldRule(base={self.base!r}): a base is {', '.join(_BASES)}")
        if not _is_number(self.scale):
            raise WorkflowError(f"FoldRule(scale={self.scale!r}): a scale is a finite number")
        weights: Any = self.weights
        if not isinstance(weights, Sequence) or isinstance(weights, str | bytes):
            weights = [] if weights is None else [weights]
        for weight in weights:
            if not (_is_number(weight) and weight > 0):
                raise WorkflowError(
                    f"FoldRule(weights=...) has {weight!r}; a weight is a finite number above 0"
                )

    def check_count(self, updates: int) -> None:
        """Refuse a list of weights that is not as long as the list of updates.

        Raises:
            WorkflowError: There are more or fewer weights than updates.
        """
        if isinstance(self.weights, Sequence) and len(self.weights) != updates:
            raise WorkflowError(
                f"FoldRule(weights=...) has {len(self.weights)} weights for {updates} updates; "
                "give one for each, in their order"
            )

    def weight_of(self, place: int, own: float) -> float:
        """Return an update's weight by its place among the fold's updates, from 0."""
        if self.weights is None:
            return own
        return float(self.weights[place] if isinstance(self.weights, Sequence) else self.weights)

    def plain(self) -> list[Any]:
        """Return the rule in the form that the arguments of an effect have."""
        weights: Any = self.weights
        if isinstance(weights, Sequence):
            weights = [float(weight) for weight in weights]
        elif weights is not None:
            weights = float(weights)
        return [weights, self.normalise, float(self.scale), self.base]


class ServerStep:
    """Step of the server along the aggregate's difference from the model, for floats.

    A workflow passes one of its own to ``run.fold(step=...)``: a frozen dataclass derived from
    this, whose fields are plain values.

    Attributes:
        moments: Names of the values that are kept for each number from fold to fold, in a file
            beside the model.
        counts_alike: Whether each update has the same weight in the aggregate.
        begins: Whether it starts from the initial moments, whatever an earlier fold has kept.
    """

    moments: Sequence[str] = ()
    counts_alike: bool = False
    begins: bool = False

    @property
    def name(self) -> str:
        """Name of the step, for messages."""
        return type(self).__name__

    def plain(self) -> list[Any]:
        """Return the step in the form that the arguments of an effect have."""
        fields: Any = self
        return [self.name, asdict(fields), list(self.moments)]

    def initial(self, moment: str) -> float:
        """Return the value of a moment before the first fold."""
        return 0.0

    def step(self, difference: Array, moments: dict[str, Array], updates: int) -> Array:
        """Make a step.

        Args:
            difference: float64 aggregate minus model, shape ``(n,)``; may be overwritten.
            moments: float64 moments before the fold by name, shape ``(n,)`` each; overwritten by
                those after it, or replaced.
            updates: Number of updates in the aggregate.

        Returns:
            Float64 values to be added to the model, shape ``(n,)``.
        """
        raise NotImplementedError(f"{self.name} has no method step")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
