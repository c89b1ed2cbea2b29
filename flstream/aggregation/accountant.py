"""Privacy that folds have spent, by the accountants of dp-accounting.

That package takes 70 MiB and a second to import, which only private jobs do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from flstream.job import Job

# Grid of a privacy loss distribution, as PLDAccountant has it.
_INTERVAL = 1e-4

NOT_DRAWN = 0
"""Stands for the number of sites that a cohort was drawn from, where it was not drawn at random."""

FoldCounts = Mapping[int, int]
"""Number of folds by the number of sites that their cohorts were drawn from."""


class Accounting(msgspec.Struct, frozen=True):
    """Inputs of epsilon beside the folds."""

    accountant: Literal["rdp", "pld"]  # name of the accountant
    sampling: Literal["poisson", "without_replacement"]  # how cohorts are drawn
    noise_multiplier: float  # noise on the sum of updates, in units of the clipping norm
    cohort: int  # number of sites that are drawn, or expected
    population: int  # number of sites that they are drawn from while all of them are asked
    delta: float  # probability at which epsilon may fail

    @classmethod
    def of(cls, job: Job) -> Accounting:
        """Make the accounting of a private job."""
        privacy, clients = job.privacy, job.clients
        return cls(
            privacy.accountant,
            privacy.sampling,
            privacy.noise_multiplier,
            privacy.cohort(clients),
            privacy.drawn_from(clients),
            privacy.delta,
        )


def epsilon(accounting: Accounting, folds: FoldCounts) -> float:
    """Compute the epsilon of folds, at the accounting's delta.

    With Poisson sampling, neighbours differ by one site more or less. A cohort that is drawn
    without replacement is for neighbours in which one site's data are replaced: they differ by
    twice the clipping norm, so that the noise counts half (Wang et al. 2019, arXiv:1808.00087).
    """
    return _epsilon(accounting, tuple(item for item in sorted(folds.items()) if item[1]))


@cache
def _epsilon(accounting: Accounting, counts: tuple[tuple[int, int], ...]) -> float:
    if not counts:
        return 0.0
    if accounting.accountant == "pld":
        from dp_accounting.pld import privacy_loss_distribution

        loss = privacy_loss_distribution.identity(value_discretization_interval=_INTERVAL)
        for drawn_from, count in counts:
            loss = loss.compose(_loss(accounting, drawn_from, count))
        return float(loss.get_epsilon_for_delta(accounting.delta))
    from dp_accounting.rdp import compute_epsilon

    divergences = [count * _divergences(accounting, drawn_from)[1] for drawn_from, count in counts]
    orders, _ = _divergences(accounting, NOT_DRAWN)
    return float(compute_epsilon(orders, sum(divergences), accounting.delta)[0])


def _loss(accounting: Accounting, drawn_from: int, count: int) -> Any:
    """Return the distribution of the privacy loss of several folds alike."""
    noise = accounting.noise_multiplier
    if drawn_from <= accounting.cohort:
        return _loss_of_one(noise / math.sqrt(count), 1.0)
    return _loss_of_one(noise, accounting.cohort / drawn_from).self_compose(count)


@cache
def _loss_of_one(noise: float, share: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=_INTERVAL, sampling_prob=share
    )


@cache
def _divergences(accounting: Accounting, drawn_from: int) -> tuple[Any, Any]:
    """Return the orders of Renyi divergences, and one fold's; those of folds add up."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SampledWithoutReplacementDpEvent,
    )
    from dp_accounting.rdp import RdpAccountant

    noise, cohort = accounting.noise_multiplier, accounting.cohort
    is_drawn = drawn_from > cohort  # fewer are all of them, and none of them is hidden
    if accounting.sampling == "without_replacement":
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        event: Any = GaussianDpEvent(noise / 2)
        if is_drawn:
            event = SampledWithoutReplacementDpEvent(drawn_from, cohort, event)
    else:
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
        event = GaussianDpEvent(noise)
        if is_drawn:
            event = PoissonSampledDpEvent(cohort / drawn_from, event)
    # absl warns of each order that is left out; the other orders still give a bound.
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        accountant.compose(event)
    finally:
        absl.setLevel(level)
    return accountant.orders, accountant.rdp
