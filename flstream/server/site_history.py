"""History of the sites of a run, by which samplers choose: what the journal has of each."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flstream.job.device import NANOSECONDS
from flstream.server.sampling import round_generator

if TYPE_CHECKING:
    from flstream.runs.results import TrainResult

LOSSES = ("train_loss", "loss")
"""Metrics of a training that have its loss; the first of them that is there, and finite, counts."""


class AskedSite(msgspec.Struct, frozen=True, gc=False):
    """A site that was asked to train, as far as journaled results tell.

    Attributes:
        times_asked: How often it was asked.
        times_failed: How often it sent no update: it failed, or was not waited for.
        last_round: Round in which it was last asked, from 1.
        examples: Weight of its last update, which is its number of examples; None before one.
        loss: Training loss that it last reported, ``train_loss`` or else ``loss``; None before one.
        seconds: Simulated seconds that its last task took; None with ``time.clock = wall``, and
            before one has ended.
    """

    times_asked: int = 0
    times_failed: int = 0
    last_round: int = 0
    examples: float | None = None
    loss: float | None = None
    seconds: float | None = None


class SamplingHistory(NamedTuple):
    """History of a run, as a sampler sees it.

    Attributes:
        round: Number of the round to sample for, from 1.
        random: A generator whose numbers follow from the job's seed and the round.
        sites: The sites that were asked to train, by name; others have no entry.
    """

    round: int
    random: random.Random
    sites: Mapping[str, AskedSite]


class SiteHistory:
    """Records what sites have done, from results on record; replay rebuilds it.

    There is none for the sampler ``uniform``, which needs none of it: 100,000 records take 20 MiB.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sites: dict[str, AskedSite] = {}

    def before(self, number: int) -> SamplingHistory:
        """Return the history by which the sites of a round are sampled."""
        generator = round_generator(self._seed, number)
        return SamplingHistory(number, generator, MappingProxyType(self._sites))

    def take(self, number: int, result: TrainResult) -> None:
        """Note the sites of a training on record that was asked for in a round.

        Args:
            number: Number of the round.
            result: The training's result.
        """
        seconds = {site: time / NANOSECONDS for site, time in result.times.items()}
        for site, weight, metrics, _ in result.answers():
            self.note(site, number, weight, metrics, seconds.get(site))
        for site in result.failures:
            # After how long it failed says nothing of its speed.
            self.note(site, number, None, {})

    def note(
        self,
        site: str,
        number: int,
        weight: float | None,
        metrics: Mapping[str, float],
        seconds: float | None = None,
    ) -> None:
        """Note a task of a site; see :class:`AskedSite`. Without a weight it has failed."""
        before = self._sites.get(site) or AskedSite()
        losses = (metrics[name] for name in LOSSES if name in metrics)
        self._sites[site] = AskedSite(
            times_asked=before.times_asked + 1,
            times_failed=before.times_failed + (weight is None),
            last_round=max(before.last_round, number),
            examples=before.examples if weight is None else weight,
            # That of a training that diverged is no number to compare others with.
            loss=next(filter(math.isfinite, losses), before.loss),
            seconds=before.seconds if seconds is None else seconds,
        )
