"""What the sites of a round count for: their weights, and the metrics weighted by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flstream.client.messages import ScoredSite, TrainedSite
from flstream.errors import SimulationError


def check_weights(told: Mapping[str, TrainedSite]) -> None:
    """Refuse weights of which no mean can be made.

    Raises:
        SimulationError: their sum is not finite; the message names a site.
    """
    if not math.isfinite(sum(each.weight for each in told.values())):
        largest = max(told, key=lambda site: told[site].weight)
        raise SimulationError(f"the weights add up to infinity; that of {largest} is the largest")


def weighted_metrics(answers: Sequence[TrainedSite | ScoredSite]) -> dict[str, float]:
    """The mean of each metric over the answers that have it, weighted as they are."""
    names = sorted({name for answer in answers for name in answer.metrics})
    means = {}
    for name in names:
        having = [answer for answer in answers if name in answer.metrics]
        total = sum(answer.weight for answer in having)
        means[name] = sum(answer.weight * answer.metrics[name] for answer in having) / total
    return means
