"""A job's rule for folding updates, and for choosing the aggregated tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.update import CollectedUpdate
from flstream.errors import AggregationError, UsageError
from flstream.job.aggregation_section import METHODS, AggregationSection, is_own
from flstream.job.bodies import MAIN
from flstream.job.code import find
from flstream.model.dtypes import FLOATS
from flstream.model.joined import body_of, own_name
from flstream.model.layout import Layout

# Products with values, and sums of a million of them, stay normal numbers of float64.
LEAST_WEIGHT, MOST_WEIGHT = 1e-200, 1e200


@dataclass(frozen=True)
class GaussianMechanism:
    """Bound and noise that make the mean of one fold private."""

    clip_norm: float  # bound of the L2 norm of each update's difference from the model
    cohort: int  # number that the sum of differences is divided by
    noise: float  # standard deviation of the noise on each number of the mean
    # Name of the fold, which decides the noise; of the seed, the round and the fold in it.
    name: str


@dataclass(frozen=True)
class AggregationRule:
    """Rule by which updates become the next model.

    Attributes:
        method: Way to combine updates: one of ``METHODS`` but ``norm_bounded_mean``, which is the
            mean with a limit of the norm; or the place of a user's own rule.
        args: Keyword arguments of the method: those of its section in ``METHODS``, or of a user's
            own rule.
        clip_norm: Limit of the L2 norm of an update's difference from the model, over all its
            aggregated floats; ``median`` for the median of the updates' norms; None for no limit.
        include: Regular expressions, one of which must be found in a tensor's name (or in that of a
            tensor tied to it) for it to be aggregated.
        exclude: Regular expressions of which none may be found there.
        on_nonfinite: Whether an update with an infinity or a NaN is refused or folded.
        weights: Factors of the weights of updates, by site; 1 for others.
        bodies: Names of the bodies that are folded with the model, beside it.
        fold_rules: Rules of bodies that are combined otherwise, by name of the body; that of the
            model has the empty name.
        counts_alike: Whether every update has the same weight.
        mechanism: Mechanism of a private mean; None for the mean as it is. With one, all updates
            count alike, and only floats are aggregated, since no noise is added to other numbers.
        combined: Names of tensors that were combined in groups, before the walk.
    """

    method: str = "mean"
    args: Mapping[str, Any] = field(default_factory=dict)
    clip_norm: float | Literal["median"] | None = None
    include: Sequence[str] = (".*",)
    exclude: Sequence[str] = ()
    on_nonfinite: Literal["reject", "allow"] = "reject"
    weights: Mapping[str, float] = field(default_factory=dict)
    bodies: Sequence[str] = ()
    fold_rules: Mapping[str, FoldRule] = field(default_factory=dict)
    counts_alike: bool = False
    mechanism: GaussianMechanism | None = None
    combined: frozenset[str] = frozenset()

    @property
    def needs_all_updates(self) -> bool:
        """Whether the fold needs all updates at once, and not only their sum."""
        return self.holds_ranges or self.clip_norm == "median"

    @property
    def holds_ranges(self) -> bool:
        """Whether a range of every update, in float64, is in memory at a time."""
        return self.method != "mean"

    @property
    def compares(self) -> bool:
        """Whether the fold compares all updates in a pass before it folds any."""
        if is_own(self.method):
            return callable(getattr(find(self.method, "class"), "weigh", None))
        return METHODS[self.method].compares

    @property
    def combines_groups(self) -> bool:
        """Whether it is a user's own rule that combines groups of whole tensors."""
        return is_own(self.method) and callable(
            getattr(find(self.method, "class"), "combine", None)
        )

    def adopting(self) -> AggregationRule:
        """Return the rule by which one update becomes the next model, as it is."""
        # Multiplied by a weight and divided by it again, a float64 need not be what it was.
        return replace(
            self,
            method="mean",
            args={},
            clip_norm=None,
            weights={},
            counts_alike=True,
            mechanism=None,
        )

    def private(self, mechanism: GaussianMechanism) -> AggregationRule:
        """Return the rule of a fold with a mechanism that makes the mean private."""
        return replace(self, clip_norm=mechanism.clip_norm, mechanism=mechanism)

    def weight_of(self, update: CollectedUpdate) -> float:
        """Return the weight that an update has in a fold.

        Raises:
            AggregationError: That is too large or too small for sums in float64.
        """
        if self.counts_alike or self.mechanism is not None:
            return 1.0
        factor = self.weights.get(update.site, 1.0)
        weight = update.weight * factor
        if factor != 1.0 and not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            raise AggregationError(
                f"the weight of {update.site}, {update.weight:g}, times its factor in "
                f"aggregation.weights, {factor:g}, is beyond what can be added up; change one"
            )
        return weight

    def selected(self, layout: Layout) -> frozenset[str]:
        """Return the names of the tensors that are aggregated.

        Those of other bodies than the model's are where the model's tensors of these names are; a
        tensor of a name that the model lacks is the server's own, and always is.

        Raises:
            UsageError: A pattern is found in no name; the message has the key and the pattern.
        """
        included, excluded = (
            found_names(f"aggregation.{key}", patterns, layout, self.bodies)
            for key, patterns in (("include", self.include), ("exclude", self.exclude))
        )
        names = layout.by_name.keys() if self.bodies else ()
        own = {name for name in names if own_name(name, self.body_of(name)) not in names}
        selected = ((included - excluded) | own) - self.combined
        if self.mechanism is None:
            return selected
        return frozenset(name for name in selected if layout.by_name[name].dtype in FLOATS)

    def body_of(self, name: str) -> str:
        """Name of the body that a tensor belongs to; empty for the model itself."""
        return body_of(name, self.bodies) if self.bodies else MAIN


def rule_for(section: AggregationSection) -> AggregationRule:
    """Make the rule of a job file."""
    names = [each.name for each in fields(AggregationRule)]
    values = {name: getattr(section, name) for name in names if hasattr(section, name)}
    values["method"] = "mean" if section.type == "norm_bounded_mean" else section.type
    values["args"] = dict(section.args)
    return AggregationRule(**values)


def found_names(
    key: str, patterns: Sequence[str], layout: Layout, bodies: Sequence[str] = ()
) -> frozenset[str]:
    """Return the tensors with a name, tied names included, that a pattern matches.

    Args:
        key: Key of the job file that has the patterns, for messages.
        patterns: Regular expressions.
        layout: Layout of the model.
        bodies: Names of the bodies that are joined with the model in the layout; patterns are
            looked for in their tensors' own names.

    Raises:
        UsageError: A pattern is found in no name; the message has the key and the pattern.
    """
    owners = {name: name for name in layout.by_name} | layout.aliases
    shown = {name: own_name(name, body_of(name, bodies)) for name in owners}
    selected: set[str] = set()
    for pattern in patterns:
        matching = {owners[name] for name in owners if re.search(pattern, shown[name])}
        if owners and not matching:
            raise UsageError(
                f"{key}: the pattern {pattern!r} is found in no tensor's name; "
                "flstream inspect lists the names"
            )
        selected |= matching
    return frozenset(selected)
