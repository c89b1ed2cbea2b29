"""The mean of a metric over the answers of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flstream.client.messages import SiteAnswer


def weighted_metrics(answers: Sequence[SiteAnswer]) -> dict[str, float]:
    """Return the weighted mean of each metric.

    Args:
        answers: Answers of a task. An answer without a metric does not count for that metric.

    Returns:
        Means by name of the metric.
    """
    names = sorted({name for answer in answers for name in answer.metrics})
    return {name: _mean([each for each in answers if name in each.metrics], name) for name in names}


def _mean(answers: Sequence[SiteAnswer], name: str) -> float:
    total = sum(each.weight for each in answers)
    mean = sum(each.weight * each.metrics[name] for each in answers) / total
    if math.isfinite(mean):
        return mean
    # Where a product alone is too large for a float, shares of the whole are not.
    return sum(each.weight / total * each.metrics[name] for each in answers)
