"""A rule: how a job wants its updates folded, and into which of the model's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flstream.aggregation.fold import Fold
from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.ranked import TrimmedMean, fraction_trim, median_trim
from flstream.errors import UsageError
from flstream.job.sections import Aggregation
from flstream.model.layout import Layout

Method = Literal["mean", "median", "trimmed_mean"]


@dataclass(frozen=True)
class Rule:
    """How updates become the next model.

    Attributes:
        method: what is made of the values of each coordinate.
        trim: for ``trimmed_mean``, the fraction of values left out at either end; below a half.
        clip_norm: the most that an update may differ from the model in L2, over all aggregated
            floats of it; None where that is not limited.
        include: regular expressions, one of which must be found in a tensor's name (or in that of
            a tensor tied to it), or else it keeps its old value.
        exclude: regular expressions of which none may be found there.
        on_nonfinite: whether an update with an infinity or a NaN is refused or folded.
    """

    method: Method = "mean"
    trim: float = 0.1
    clip_norm: float | None = None
    include: Sequence[str] = (".*",)
    exclude: Sequence[str] = ()
    on_nonfinite: Literal["reject", "allow"] = "reject"

    @property
    def is_ranked(self) -> bool:
        """Whether it needs the values of all updates at once, so that sums will not do."""
        return self.method != "mean"

    def fold(self) -> Fold:
        """What one walk folds with."""
        return _FOLDS[self.method](self)

    def selected(self, layout: Layout) -> frozenset[str]:
        """The names of the tensors that are aggregated.

        Raises:
            UsageError: a pattern is found in no name; the message has the key and the pattern.
        """
        names: dict[str, list[str]] = {spec.name: [spec.name] for spec in layout.tensors}
        for alias, name in layout.aliases.items():
            names[name].append(alias)
        included = _matching("include", self.include, names)
        return frozenset(included) - frozenset(_matching("exclude", self.exclude, names))


def rule_for(section: Aggregation) -> Rule:
    """The rule that a job file asks for."""
    return Rule(
        method=section.method,
        trim=section.trim,
        clip_norm=section.clip_norm,
        include=section.include,
        exclude=section.exclude,
        on_nonfinite=section.on_nonfinite,
    )


_FOLDS: dict[Method, Callable[[Rule], Fold]] = {
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
