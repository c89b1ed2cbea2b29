"""Rules and code of a workflow's own for a fold, in place of the job's."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

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


class TensorGroup:
    """A group of tensors, as the code that combines it sees it.

    Attributes:
        name: Name of the group.
        base: Its tensors in the model that sites started from, by name: float64 arrays of the
            tensors' shapes.
    """

    def __init__(self, name: str, base: Mapping[str, Array], numbers: Counter[str]) -> None:
        self.name = name
        self.base = base
        self._numbers: Any = numbers

    def log(self, key: str, value: float) -> None:
        """Record a number in the run's events, as ``run.log`` does.

        What the groups of a fold log under one key is added up.
        """
        self._numbers[str(key)] += float(value)


@dataclass(frozen=True)
class GroupUpdate:
    """Tensors of a site's update that belong to a group.

    Attributes:
        site: Name of the site.
        weight: Weight of the update in a mean, before dividing by the sum of all weights.
        tensors: New values by name, float64 arrays of the tensors' shapes; without those that the
            update lacks.
    """

    site: str
    weight: float
    tensors: Mapping[str, Array]


CombineTensor = Callable[[TensorGroup, Sequence[GroupUpdate]], Any]
"""Function that combines a group of one tensor into a new array, or a dict with it."""


class CombinesGroups(Protocol):
    """A rule that combines groups of whole tensors."""

    def groups(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return names of tensors by name of their group; other tensors take the mean."""
        ...

    def combine(self, group: TensorGroup, updates: Sequence[GroupUpdate]) -> Mapping[str, Array]:
        """Return new tensors of a group by name."""
        ...


@dataclass(frozen=True)
class TensorFold:
    """Code that combines groups of tensors.

    Attributes:
        name: Name of the code, for messages.
        where: Path of its file.
        groups: As in :class:`CombinesGroups`; None where each tensor is a group of its own.
        combine: As in :class:`CombinesGroups`.
        plain: Identity of the code in the arguments of an effect.
    """

    name: str
    where: str
    groups: Callable[[Sequence[str]], Mapping[str, Sequence[str]]] | None
    combine: Callable[[TensorGroup, Sequence[GroupUpdate]], Mapping[str, Array]]
    plain: Sequence[Any] = ()

    @classmethod
    def of(cls, tensors: Any) -> TensorFold:
        """Return the code that a workflow passes to ``run.fold(tensors=...)``.

        Raises:
            WorkflowError: It is neither a function nor a frozen dataclass with both methods.
        """
        if inspect.isfunction(tensors):
            name = tensors.__qualname__
            return cls(name, tensors.__code__.co_filename, None, tensors, [name])
        kind: Any = type(tensors)
        methods = [getattr(kind, name, None) for name in ("groups", "combine")]
        is_record = is_dataclass(tensors) and not isinstance(tensors, type)
        if not (is_record and all(map(inspect.isfunction, methods))):
            raise WorkflowError(
                f"run.fold() was given a {kind.__name__} as tensors; give it a function of (group, "
                "updates), or an object of a frozen dataclass with the methods groups(names) and "
                "combine(group, updates)"
            )
        plain = [kind.__qualname__, asdict(tensors)]
        where = kind.combine.__code__.co_filename
        return cls(kind.__name__, where, tensors.groups, tensors.combine, plain)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
