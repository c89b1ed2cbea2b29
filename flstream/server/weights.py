"""Weights of a round's answers, and the mean of their metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flstream.client.messages import SiteAnswer
from flstream.errors import SimulationError


def check_weights(answers: Mapping[str, SiteAnswer]) -> None:
    """Check that the sum of the answers' weights is finite.

    Args:
        answers: Answers of a task, by site.

    Raises:
        SimulationError: It is infinite; the message names the site with the largest weight.
    """
    if not math.isfinite(sum(each.weight for each in answers.values())):
        largest = max(answers, key=lambda site: answers[site].weight)
        raise SimulationError(f"the weights add up to infinity; that of {largest} is the largest")


def weighted_metrics(answers: Sequence[SiteAnswer]) -> dict[str, float]:
    """Return the weighted mean of each metric.

    Args:
        answers: Answers of a task. An answer without a metric does not count for that metric.

    Returns:
        Means by name of the metric.
    """
    names = sorted({name for answer in answers for name in answer.metrics})
    means = {}
    for name in names:
        reporting = [answer for answer in answers if name in answer.metrics]
        total = sum(answer.weight for answer in reporting)
        means[name] = sum(answer.weight * answer.metrics[name] for answer in reporting) / total
    return means
