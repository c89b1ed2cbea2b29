"""How a workflow has the updates of one body combined, where it is not as the job says."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from flstream.errors import WorkflowError

Base = Literal["own", "zero"]
_BASES: tuple[Base, ...] = ("own", "zero")


@dataclass(frozen=True)
class FoldRule:
    """Rule of a fold: ``body + scale * sum of w_i (update_i - base_i)``, for floats of all kinds.

    Integers and bools of such a body take the mean, weighted by the updates' own weights.

    Attributes:
        weights: The weights ``w_i``: one for each update, in the order in which they are folded;
            the same number for all; or None for the updates' own, their numbers of examples.
        normalise: Whether the sum is divided by that of the weights.
        scale: Factor of the sum.
        base: What an update is compared with: ``"own"`` for the body that it was made from, or
            ``"zero"`` where what was sent is a difference already.
    """

    weights: Mapping[str, float] | Sequence[float] | float | None = None
    normalise: bool = False
    scale: float = 1.0
    base: Base = "own"

    def __post_init__(self) -> None:
        """Refuse what is no rule.

        Raises:
            WorkflowError: The message names the attribute and its value.
        """
        if self.base not in _BASES:
            raise WorkflowError(f"FoldRule(base={self.base!r}): a base is {' or '.join(_BASES)}")
        if not _is_number(self.scale):
            raise WorkflowError(f"FoldRule(scale={self.scale!r}): a scale is a finite number")
        for each in self._all_weights():
            if not (_is_number(each) and each > 0):  # type: ignore[operator]
                raise WorkflowError(
                    f"FoldRule(weights=...) has {each!r}; a weight is a finite number above 0"
                )

    def by_site(self, sites: Sequence[str]) -> FoldRule:
        """The rule with the weights that are in a list by the names of their sites.

        Args:
            sites: Names of the updates' sites, in order.

        Raises:
            WorkflowError: There are more or fewer weights than updates.
        """
        if not isinstance(self.weights, Sequence):
            return self
        if len(self.weights) != len(sites):
            raise WorkflowError(
                f"FoldRule(weights=...) has {len(self.weights)} weights for {len(sites)} updates; "
                "give one for each, in their order"
            )
        return replace(self, weights=dict(zip(sites, self.weights, strict=True)))

    def _all_weights(self) -> Collection[object]:
        match self.weights:
            case None:
                return ()
            case Mapping() as by_site:
                return by_site.values()
            case str() | bytes():
                return [self.weights]
            case Sequence() as listed:
                return listed
            case number:
                return [number]

    def weight_of(self, site: str, own: float) -> float:
        """Weight of a site's update.

        Args:
            site: Name of the site.
            own: The update's own weight.

        Raises:
            WorkflowError: The weights are by site, and it is not among them.
        """
        if self.weights is None:
            return own
        if isinstance(self.weights, Mapping):
            if site not in self.weights:
                raise WorkflowError(
                    f"FoldRule(weights=...) has no weight for {site}, whose update is folded; "
                    "give it one"
                )
            return float(self.weights[site])
        assert isinstance(self.weights, int | float)
        return float(self.weights)

    def plain(self) -> list[Any]:
        """The rule as the arguments of an effect have it."""
        weights: Any = self.weights
        if isinstance(weights, Mapping):
            weights = {site: float(each) for site, each in weights.items()}
        elif isinstance(weights, Sequence):
            weights = [float(each) for each in weights]
        elif weights is not None:
            weights = float(weights)
        return [weights, self.normalise, float(self.scale), self.base]


def _is_number(value: object) -> bool:
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)  # type: ignore[arg-type]
