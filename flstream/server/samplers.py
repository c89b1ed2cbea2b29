"""Samplers: who of the sites is asked in a round, by what the journal has of them.

A sampler's choice follows from its arguments and the history, so that replay chooses the same. All
arithmetic is that of IEEE 754 alone, without functions of the C library that differ in a last bit
from one machine to another.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from heapq import nlargest, nsmallest
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from flstream.debugging import code_failed, sentence
from flstream.errors import FlstreamError, WorkflowError
from flstream.job.clients_section import OortSection, PowerOfChoiceSection, SamplerSection
from flstream.job.code import make
from flstream.job.fields import Section
from flstream.job.problems import did_you_mean
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
    if (choose := BUILT_IN.get(section.type)) is None:
        return _sampled_by_own(section, sites, count, history)
    return choose(section.args, sites, count, history)


def _sampled_by_own(
    section: SamplerSection, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    name = section.name
    try:
        # Made anew for each round, so that nothing but the history decides.
        returned = make(section.type, dict(section.args)).sample([*sites], count, history)
        is_list = isinstance(returned, Iterable) and not isinstance(returned, str)
        names = [*returned] if is_list else None
    except FlstreamError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        code_failed(error)
        reason = sentence(error, Path(section.type.rpartition(":")[0]), name)
        raise WorkflowError(
            f"clients.sampler {name} failed in round {history.round}: {reason}; mend it, and start "
            "the run again"
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


def _uniform(_: Section, sites: Sequence[str], count: int, history: SamplingHistory) -> list[str]:
    """Draw every site with the same probability, at the cost of the sites chosen."""
    return sample_by(history.random, sites, count)


def _by_data_size(
    _: Section, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    """Draw sites one after another, each with a probability in proportion to its examples."""
    return in_order(sites, draw_places(_examples(sites, history), count, history.random))


def _power_of_choice(
    args: PowerOfChoiceSection, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    """Choose the candidates of the highest loss (Cho, Wang and Joshi 2020, arXiv:2010.01243).

    It is the variant rpow-d, which takes the loss that a site reported when it last trained, and an
    infinite one for a site that has reported none.
    """
    _check_losses("power_of_choice", history)
    drawn = max(count, min(args.candidates or 2 * count, len(sites)))
    places = draw_places(_examples(sites, history), drawn, history.random)

    def rank(place: int) -> tuple[bool, float]:
        site = history.sites.get(sites[place])
        return (False, 0.0) if site is None or site.loss is None else (True, -site.loss)

    # Those that are equal stay in the order in which they were drawn.
    return in_order(sites, sorted(places, key=rank)[:count])


def _oort(
    args: OortSection, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    """Choose useful and fast sites, and explore others (Lai et al., OSDI 2021, algorithm 1).

    The statistical utility of a site with the samples B is ``|B| sqrt(mean of loss^2)`` over its
    samples. Sites report the mean loss alone, which takes the place of that root. As in the
    authors' code, utilities are clipped at their 95% quantile and scaled to 0 to 1 before the term
    for sites that were not asked for long is added. The pacer, which lengthens the preferred
    duration, and the limit of how often a site is asked are left out.
    """
    _check_losses("oort", history)
    asked_sites = [*map(history.sites.get, sites)]
    is_known = [site is not None and site.loss is not None for site in asked_sites]
    explored = [place for place, known in enumerate(is_known) if known]
    unexplored = [place for place, known in enumerate(is_known) if not known]
    new = min(round(count * oort_share(args, history.round)), len(unexplored))
    new = max(new, count - len(explored))
    chosen = history.random.sample(unexplored, new)
    if best := count - new:
        records = [site for site in asked_sites if site is not None and site.loss is not None]
        utilities = oort_utilities(args, records, history.round)
        least = args.cutoff * nlargest(best, utilities)[-1]
        admitted = [index for index, utility in enumerate(utilities) if utility >= least]
        drawn = draw_places([utilities[index] for index in admitted], best, history.random)
        chosen += [explored[admitted[index]] for index in drawn]
    return in_order(sites, chosen)


def oort_share(args: OortSection, number: int) -> float:
    """Return the fraction of a round's sites that are drawn from those without a loss."""
    share = args.exploration
    for _ in range(1, number):
        if share <= args.exploration_min:
            break
        share *= args.exploration_decay
    return max(share, args.exploration_min)


def oort_utilities(args: OortSection, records: Sequence[AskedSite], number: int) -> list[float]:
    """Return the utilities of sites with a loss, at least 0, in a round."""
    statistical = [(site.examples or 0.0) * abs(site.loss or 0.0) for site in records]
    ranked = sorted(statistical)
    most = min(ranked[min(int(len(ranked) * _CLIPPED), len(ranked) - 1)], _LARGEST)
    least = min(ranked[0], most)
    span = most - least
    # Of decimal, whose logarithm is rounded correctly.
    logarithm = float(Decimal(max(number, 1)).ln())
    terms = {last: math.sqrt(0.1 * logarithm / last) for last in {r.last_round for r in records}}
    utilities = [
        ((min(utility, most) - least) / span if span else 0.0) + terms[site.last_round]
        for utility, site in zip(statistical, records, strict=True)
    ]
    durations = [site.seconds for site in records]
    known = sorted(seconds for seconds in durations if seconds is not None)
    preferred = args.preferred_duration
    if preferred is None:
        preferred = known[int(len(known) * _FAST)] if known else math.inf
    return [
        utility
        if seconds is None or seconds <= preferred
        else utility * math.prod([preferred / seconds] * args.alpha)
        for utility, seconds in zip(utilities, durations, strict=True)
    ]


def _round_robin(
    _: Section, sites: Sequence[str], count: int, history: SamplingHistory
) -> list[str]:
    """Choose all sites in turn, in their order: those first that were last asked longest ago."""

    def rank(place: int) -> tuple[int, int]:
        site = history.sites.get(sites[place])
        # Where a round ended one turn and began the next, those of the end were asked less.
        return (0, 0) if site is None else (site.last_round, site.times_asked)

    return in_order(sites, nsmallest(count, range(len(sites)), key=rank))


BUILT_IN: Mapping[str, Callable[[Any, Sequence[str], int, SamplingHistory], list[str]]] = (
    MappingProxyType(
        {
            "uniform": _uniform,
            "by_data_size": _by_data_size,
            "power_of_choice": _power_of_choice,
            "oort": _oort,
            "round_robin": _round_robin,
        }
    )
)
"""The samplers that come with flstream, each called with the section of its arguments."""


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
