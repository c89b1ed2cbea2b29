"""Samplers: who of the sites is asked in a round, by what the journal has of them.

A sampler's choice follows from its arguments and the history, so that replay chooses the same. All
arithmetic is that of IEEE 754 alone, without functions of the C library that differ in a last bit
from one machine to another.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from heapq import nlargest, nsmallest
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

from flstream.debugging import code_failed
from flstream.errors import FlstreamError, WorkflowError
from flstream.job.code import make, raised
from flstream.job.problems import did_you_mean
from flstream.job.sampler_section import SamplerSection
from flstream.server.sampling import in_order, sample_by
from flstream.server.site_history import LOSSES, AskedSite, SamplingHistory
from flstream.text import brief_names, shortened

_FAST = 0.3  # of tasks are within Oort's preferred duration, where a job gives none
_CLIPPED = 0.95  # quantile at which Oort clips utilities, as in the paper
_LARGEST = 1e300  # utility: those of a loss that is all but infinite overflow
_MOST_SHOWN = 80  # characters of a wrong name in a message


class Sampler(Protocol):
    """Way to choose the sites of a round."""

    def sample(self, sites: Sequence[str], count: int, history: SamplingHistory) -> Sequence[str]:
        """Choose sites.

        Args:
            sites: Names of the sites that may be asked now, in their fixed order.
            count: How many to choose: at least 1, and at most as many as there are.
            history: What the journal has of them.

        Returns:
            The names, each once, in any order.
        """
        ...


def sampled(
    section: SamplerSection, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    """Choose the sites of a round by a job's sampler.

    Returns:
        ``count`` names, or all if there are no more, in the order of ``sites``, which is the order
        in which updates are folded.

    Raises:
        WorkflowError: A user's own sampler failed, or chose no such names; or no site has reported
            the metric that the sampler needs. The message names the sampler.
    """
    if not (count := min(count, len(sites))):
        return []
    kind = BUILT_IN.get(section.type)
    if kind is None:
        return _sampled_by_own(section, sites, count, history)
    return [*kind(**dict(section.args)).sample(sites, count, history)]


def _sampled_by_own(
    section: SamplerSection, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    name, where = section.name, section.type.rpartition(":")[0]
    try:
        # Made anew for each round, so that nothing but the history decides.
        returned = make(section.type, dict(section.args)).sample([*sites], count, history)
        is_list = isinstance(returned, Iterable) and not isinstance(returned, str)
        names = [*returned] if is_list else None
    except FlstreamError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        code_failed(error)
        raise WorkflowError(
            f"clients.sampler {name} failed in round {history.round}: {raised(error, where, name)};"
            " mend it, and start the run again"
        ) from error
    number = history.round

    def refusal(returned: str, next_step: str) -> WorkflowError:
        what = f"clients.sampler {name} returned {returned}"
        return WorkflowError(f"{what} for round {number}; return {next_step}")

    if names is None:
        raise refusal(f"a {type(returned).__name__}", f"a list of {count} of the names in sites")
    chosen, known = set[str](), set(sites)
    for site in names:
        if not isinstance(site, str) or site not in known:
            near = f" ({hint})" if (hint := did_you_mean(str(site), sites[:1000])) else ""
            wrong = f"{shortened(repr(site), _MOST_SHOWN)}{near}"
            raise refusal(wrong, f"names in sites, which are {brief_names(sites)}")
        if site in chosen:
            raise refusal(f"{site} twice", "each site once")
        chosen.add(site)
    if len(chosen) != count:
        raise refusal(f"{len(chosen)} of {len(sites)} sites", f"{count}, as count says")
    return [site for site in sites if site in chosen]


@dataclass(frozen=True)
class UniformSampler:
    """Draws every site with the same probability."""

    def sample(self, sites: Sequence[str], count: int, history: SamplingHistory) -> Sequence[str]:
        """Choose sites; the cost is that of the sites chosen."""
        return sample_by(history.random, sites, count)


@dataclass(frozen=True)
class DataSizeSampler:
    """Draws sites one after another, each with a probability in proportion to its examples."""

    def sample(self, sites: Sequence[str], count: int, history: SamplingHistory) -> Sequence[str]:
        """Choose sites."""
        return in_order(sites, draw_places(_examples(sites, history), count, history.random))


@dataclass(frozen=True)
class PowerOfChoiceSampler:
    """Asks the candidates of the highest loss (Cho, Wang and Joshi 2020, arXiv:2010.01243).

    It is the variant rpow-d, which takes the loss that a site reported when it last trained, and an
    infinite one for a site that has reported none.

    Attributes:
        candidates: Sites that are drawn as candidates; None for twice as many as are asked.
    """

    candidates: int | None

    def sample(self, sites: Sequence[str], count: int, history: SamplingHistory) -> Sequence[str]:
        """Choose sites."""
        _check_losses("power_of_choice", history)
        drawn = max(count, min(self.candidates or 2 * count, len(sites)))
        places = draw_places(_examples(sites, history), drawn, history.random)

        def rank(place: int) -> tuple[bool, float]:
            site = history.sites.get(sites[place])
            return (False, 0.0) if site is None or site.loss is None else (True, -site.loss)

        # Those that are equal stay in the order in which they were drawn.
        return in_order(sites, sorted(places, key=rank)[:count])


@dataclass(frozen=True)
class OortSampler:
    """Asks useful and fast sites, and explores others (Lai et al., OSDI 2021, algorithm 1).

    The statistical utility of a site with the samples B is ``|B| sqrt(mean of loss^2)`` over its
    samples. Sites report the mean loss alone, which takes the place of that root. As in the
    authors' code, utilities are clipped at their 95% quantile and scaled to 0 to 1 before the term
    for sites that were not asked for long is added. The pacer, which lengthens the preferred
    duration, and the limit of how often a site is asked are left out.

    Attributes:
        exploration: Fraction of sites without a loss, in the first round.
        exploration_decay: Factor of that fraction from round to round.
        exploration_min: Least fraction.
        preferred_duration: Seconds beyond which a site counts for less; None for those within which
            30% of the sites have answered.
        alpha: Exponent by which it does.
        cutoff: Fraction of the utility of the last one of the best sites from which on sites are
            drawn.
    """

    exploration: float
    exploration_decay: float
    exploration_min: float
    preferred_duration: float | None
    alpha: int
    cutoff: float

    def sample(self, sites: Sequence[str], count: int, history: SamplingHistory) -> Sequence[str]:
        """Choose sites."""
        _check_losses("oort", history)
        asked_sites = [*map(history.sites.get, sites)]
        is_known = [site is not None and site.loss is not None for site in asked_sites]
        explored = [place for place, known in enumerate(is_known) if known]
        unexplored = [place for place, known in enumerate(is_known) if not known]
        new = min(round(count * self.share(history.round)), len(unexplored))
        new = max(new, count - len(explored))
        chosen = history.random.sample(unexplored, new)
        if best := count - new:
            records = [site for site in asked_sites if site is not None and site.loss is not None]
            utilities = self.utilities(records, history.round)
            least = self.cutoff * nlargest(best, utilities)[-1]
            admitted = [index for index, utility in enumerate(utilities) if utility >= least]
            drawn = draw_places([utilities[index] for index in admitted], best, history.random)
            chosen += [explored[admitted[index]] for index in drawn]
        return in_order(sites, chosen)

    def share(self, number: int) -> float:
        """Fraction of a round's sites that are drawn from those without a loss."""
        share = self.exploration
        for _ in range(1, number):
            if share <= self.exploration_min:
                break
            share *= self.exploration_decay
        return max(share, self.exploration_min)

    def utilities(self, records: Sequence[AskedSite], number: int) -> list[float]:
        """Utilities of sites with a loss, at least 0, in a round."""
        statistical = [(site.examples or 0.0) * abs(site.loss or 0.0) for site in records]
        ranked = sorted(statistical)
        most = min(ranked[min(int(len(ranked) * _CLIPPED), len(ranked) - 1)], _LARGEST)
        least = min(ranked[0], most)
        span = most - least
        # Of decimal, whose logarithm is rounded correctly.
        logarithm = float(Decimal(max(number, 1)).ln())
        terms = {
            last: math.sqrt(0.1 * logarithm / last) for last in {r.last_round for r in records}
        }
        utilities = [
            ((min(utility, most) - least) / span if span else 0.0) + terms[site.last_round]
            for utility, site in zip(statistical, records, strict=True)
        ]
        durations = [site.seconds for site in records]
        preferred = self._preferred(durations)
        return [
            utility
            if seconds is None or seconds <= preferred
            else utility * math.prod([preferred / seconds] * self.alpha)
            for utility, seconds in zip(utilities, durations, strict=True)
        ]

    def _preferred(self, durations: Sequence[float | None]) -> float:
        if self.preferred_duration is not None:
            return self.preferred_duration
        known = sorted(seconds for seconds in durations if seconds is not None)
        return known[int(len(known) * _FAST)] if known else math.inf


@dataclass(frozen=True)
class RoundRobinSampler:
    """Asks all sites in turn, in their order: those first that were last asked longest ago."""

    def sample(self, sites: Sequence[str], count: int, history: SamplingHistory) -> Sequence[str]:
        """Choose sites."""

        def rank(place: int) -> tuple[int, int]:
            site = history.sites.get(sites[place])
            # Where a round ended one turn and began the next, those of the end were asked less.
            return (0, 0) if site is None else (site.last_round, site.times_asked)

        return in_order(sites, nsmallest(count, range(len(sites)), key=rank))


BUILT_IN: Mapping[str, type[Sampler]] = MappingProxyType(
    {
        "uniform": UniformSampler,
        "by_data_size": DataSizeSampler,
        "power_of_choice": PowerOfChoiceSampler,
        "oort": OortSampler,
        "round_robin": RoundRobinSampler,
    }
)
"""The samplers that come with flstream; their arguments are those of their sections."""


def draw_places(weights: Sequence[float], count: int, generator: random.Random) -> list[int]:
    """Draw places without replacement, each time in proportion to the weights of those left.

    Args:
        weights: Weight of each place, at least 0.
        count: How many to draw, at most as many as there are.
        generator: Source of the randomness.

    Returns:
        The places, in the order in which they were drawn.
    """
    drawn: dict[int, None] = {}
    places: Sequence[int] = range(len(weights))
    while len(drawn) < count:
        sums = [*accumulate(weights[place] for place in places)]
        total, last, repeats = sums[-1], len(sums) - 1, 0
        if not total:
            return [*drawn, *generator.sample(places, count - len(drawn))]
        # To draw with replacement and pass over repeats gives the same distribution as to leave out
        # what is drawn; that is done once repeats have cost as much as it does.
        while len(drawn) < count and repeats <= last:
            place = places[bisect_right(sums, generator.random() * total, hi=last)]
            repeats += place in drawn
            drawn[place] = None
        places = [place for place in places if place not in drawn]
    return [*drawn]


def _examples(sites: Sequence[str], history: SamplingHistory) -> list[float]:
    """Examples of each site; of one that has sent no update, the mean of the others."""
    records = map(history.sites.get, sites)
    examples = [None if site is None else site.examples for site in records]
    known = [number for number in examples if number is not None]
    mean = math.fsum(known) / len(known) if known else 1.0
    return [mean if number is None else number for number in examples]


def _check_losses(sampler: str, history: SamplingHistory) -> None:
    """Refuse to choose by losses where every site has sent an update without one."""
    records = history.sites.values()
    if any(site.loss is not None for site in records):
        return
    if any(site.examples is not None for site in records):
        first, second = LOSSES
        raise WorkflowError(
            f"clients.sampler {sampler} chooses by the training loss, and no site has reported a "
            f"finite {first} or {second}; send metrics={{'{first}': loss}} with each update, or "
            "take another sampler"
        )
