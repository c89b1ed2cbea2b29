"""Code of a workflow's or a user's own that combines groups of whole tensors."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flstream.errors import WorkflowError

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


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
