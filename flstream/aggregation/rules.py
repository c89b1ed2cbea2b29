"""A job's rule for folding updates, and for choosing the tensors that are aggregated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flstream.aggregation.elements import FLOATS
from flstream.aggregation.fold import Fold
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.private import GaussianMechanism
from flstream.aggregation.ranked import TrimmedMean, fraction_trim, median_trim
from flstream.aggregation.update import UpdateSource
from flstream.errors import AggregationError, UsageError
from flstream.job.sections import AggregationSection
from flstream.model.layout import Layout

# Products with values, and sums of a million of them, stay normal numbers of float64.
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-200, 1e200

Method = Literal["mean", "median", "trimmed_mean"]


@dataclass(frozen=True)
class AggregationRule:
    """Rule by which updates become the next model.

    Attributes:
        method: How the values of each coordinate are combined.
        trim: For ``trimmed_mean``, the fraction of values left out at each end; below 0.5.
        clip_norm: Limit of the L2 norm of an update's difference from the model, over all its
        aggregated floats; None for no limit.
        include: Regular expressions, one of which must be found in a tensor's name (or in that of a
        tensor tied to it) for it to be aggregated.
        exclude: Regular expressions of which none may be found there.
        on_nonfinite: Whether an update with an infinity or a NaN is refused or folded.
        factors: Factors of the weights of updates, by site; 1 for others.
        mechanism: What makes the mean private; None for the mean as it is. With one, all updates
            count alike, and only floats are aggregated, since no noise is added to other numbers.
    """

    method: Method = "mean"
    trim: float = 0.1
    clip_norm: float | None = None
    include: Sequence[str] = (".*",)
    exclude: Sequence[str] = ()
    on_nonfinite: Literal["reject", "allow"] = "reject"
    factors: Mapping[str, float] = field(default_factory=dict)
    mechanism: GaussianMechanism | None = None

    @property
    def is_ranked(self) -> bool:
        """Whether it needs the values of all updates at once, and not only their sum."""
        return self.method != "mean"

    def fold(self) -> Fold:
        """Make the fold of one walk."""
        return _FOLDS[self.method](self)

    def private(self, mechanism: GaussianMechanism) -> AggregationRule:
        """Return the rule of a fold that a mechanism makes private."""
        return replace(self, clip_norm=mechanism.clip_norm, mechanism=mechanism)

    def weighted(self, update: UpdateSource) -> UpdateSource:
        """Return an update with the weight that it has in a fold.

        Raises:
            AggregationError: That is too large or too small for sums in float64.
        """
        if self.mechanism is not None:
            return replace(update, weight=1.0)
        factor = self.factors.get(update.site, 1.0)
        if factor == 1.0:
            return update
        weight = update.weight * factor
        if not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
            raise AggregationError(
                f"the weight of {update.site}, {update.weight:g}, times its factor in "
                f"aggregation.weights, {factor:g}, is beyond what can be added up; change one"
            )
        return replace(update, weight=weight)

    def selected(self, layout: Layout) -> frozenset[str]:
        """Return the names of the tensors that are aggregated.

        Raises:
            UsageError: A pattern is found in no name; the message has the key and the pattern.
        """
        names: dict[str, list[str]] = {spec.name: [spec.name] for spec in layout.tensors}
        for alias, name in layout.aliases.items():
            names[name].append(alias)
        included = frozenset(_matching("include", self.include, names))
        selected = included - frozenset(_matching("exclude", self.exclude, names))
        if self.mechanism is None:
            return selected
        return frozenset(name for name in selected if layout.by_name[name].dtype in FLOATS)


def rule_for(section: AggregationSection) -> AggregationRule:
    """Make the rule of a job file."""
    return AggregationRule(
        method=section.method,
        trim=section.trim,
        clip_norm=section.clip_norm,
        include=section.include,
        exclude=section.exclude,
        on_nonfinite=section.on_nonfinite,
        factors=section.weights,
    )


_FOLDS: dict[Method, Callable[[AggregationRule], Fold]] = {
    "mean": lambda _: WeightedMean(),
    "median": lambda _: TrimmedMean(median_trim),
    "trimmed_mean": lambda rule: TrimmedMean(fraction_trim(rule.trim)),
}


def _matching(key: str, patterns: Sequence[str], names: dict[str, list[str]]) -> Iterator[str]:
    for pattern in patterns:
        found = [
            name
            for name, aliases in names.items()
            if any(re.search(pattern, each) for each in aliases)
        ]
        if not found and names:
            raise UsageError(
                f"aggregation.{key}: the pattern {pattern!r} is found in no tensor's name; "
                "flstream inspect lists the names"
            )
        yield from found
