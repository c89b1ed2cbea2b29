"""Samplers: who is asked in a round, by what the journal has of the sites."""

import math
import random
from collections import Counter

import pytest

from flstream.errors import WorkflowError
from flstream.job.clients_section import SAMPLERS, OortSection, SamplerSection
from flstream.runs.results import TaskCost, TrainResult
from flstream.server.samplers import (
    BUILT_IN,
    draw_places,
    oort_share,
    oort_utilities,
    sampled,
)
from flstream.server.sampling import sample_sites
from flstream.server.site_history import AskedSite, SamplingHistory, SiteHistory

SITES = [f"site-{number}" for number in range(1, 11)]


def sampler(kind, **args):
    return SamplerSection(type=kind, args=args)


def history(records=None, number=5, seed=7):
    return SamplingHistory(number, random.Random(f"{seed}/{number}"), records or {})


def answered(last=1, asked=1, **values):
    return AskedSite(times_asked=asked, last_round=last, **values)


def numbers(sites):
    return [int(site.removeprefix("site-")) for site in sites]


@pytest.fixture
def recorded(jobs):
    """A history that records, of a job that has a sampler other than uniform."""

    def recorded(kind="oort"):
        return SiteHistory(jobs.make("", f"clients.sampler={kind}").seed)

    return recorded


@pytest.mark.parametrize("kind", sorted(SAMPLERS))
@pytest.mark.parametrize("count", [1, 4, 9, 10, 13])
def test_every_sampler_returns_so_many_sites_in_their_order_and_the_same_again(kind, count):
    known = {
        site: answered(last=number, examples=1.0 + number, loss=1 / number, seconds=2.0)
        for number, site in enumerate(SITES[:6], 1)
    }
    for number in (1, 2, 30):
        first, again = (
            sampled(sampler(kind), SITES, count, history(known, number)) for _ in range(2)
        )
        assert first == again
        assert len(first) == min(count, 10)
        assert first == [site for site in SITES if site in set(first)]
    assert sampled(sampler(kind), [], count, history()) == []


def test_each_sampler_has_a_section_whose_defaults_it_takes():
    assert {*BUILT_IN} == {*SAMPLERS}
    for kind, section in SAMPLERS.items():
        assert len(BUILT_IN[kind](section(), SITES, 3, history())) == 3


def test_uniform_draws_as_ever_whatever_sites_have_reported(jobs):
    job = jobs.make("", "clients.count=10", "seed=3")
    kept = SiteHistory(job.seed)
    kept.take(1, TrainResult(["site-1"], [5.0], [{"loss": 1.0}], [b""], [0], TaskCost()))
    for number in range(1, 50):
        for count in (1, 3, 9, 10):
            drawn = sampled(job.clients.sampler, SITES, count, kept.before(number))
            generator = random.Random(f"flstream/sites/3/{number}")
            chosen = set(generator.sample(list(SITES), count))
            assert drawn == [site for site in SITES if site in chosen]
            assert drawn == sample_sites(SITES, count, 3, number)


# Sampling by weights


def test_places_are_drawn_one_after_another_by_the_weights_of_those_left():
    weights, draws = [1.0, 2.0, 3.0, 4.0], 20_000
    orders = Counter(
        tuple(draw_places(weights, 2, random.Random(f"draw {number}"))) for number in range(draws)
    )
    for first in range(4):
        for second in {*range(4)} - {first}:
            due = weights[first] / 10 * weights[second] / (10 - weights[first])
            assert orders[first, second] / draws == pytest.approx(due, abs=0.01)


@pytest.mark.parametrize(
    "weights",
    [[2.0**-place for place in range(40)], [1e15] + [1e-15] * 39, [0.0] * 40, [0.0, 1.0] * 20],
    ids=["halves", "one large", "zeros", "some zeros"],
)
def test_all_places_can_be_drawn_however_their_weights_differ(weights):
    assert sorted(draw_places(weights, 40, random.Random(1))) == [*range(40)]
    assert len({*draw_places(weights, 20, random.Random(1))}) == 20
    heavy = [place for place, weight in enumerate(weights) if weight == max(weights)]
    assert draw_places(weights, 1, random.Random(1))[0] in heavy or weights[0] == 1.0


def test_by_data_size_draws_in_proportion_to_examples_and_the_mean_of_them_for_the_unknown():
    known = {"site-1": answered(examples=100.0), "site-2": answered(examples=300.0)}
    known["site-3"] = answered(times_failed=1)  # asked, and has sent nothing
    draws = 20_000
    counts = Counter(
        sampled(sampler("by_data_size"), SITES, 1, history(known, number))[0]
        for number in range(draws)
    )
    due = dict.fromkeys(SITES, 200.0) | {"site-1": 100.0, "site-2": 300.0}
    for site, examples in due.items():
        assert counts[site] / draws == pytest.approx(examples / 2000, abs=0.01)


# Power of choice


def test_power_of_choice_asks_the_candidates_of_the_highest_loss():
    losses = [0.5, 2.0, 0.1, 3.0, 1.0, 0.2, 0.9, 0.8, 0.7, 0.6]
    known = {
        site: answered(examples=1.0, loss=loss) for site, loss in zip(SITES, losses, strict=True)
    }
    section = sampler("power_of_choice", candidates=10)
    assert numbers(sampled(section, SITES, 3, history(known))) == [2, 4, 5]
    # Those without a loss come first, and nothing but the draw decides among them.
    del known["site-3"]
    known["site-9"] = answered(examples=1.0)
    assert numbers(sampled(section, SITES, 3, history(known))) == [3, 4, 9]
    alone = sampled(section, SITES, 1, history(known))
    assert {*alone} < {"site-3", "site-9"}


@pytest.mark.parametrize(("candidates", "drawn"), [(None, 6), (4, 4)])
def test_power_of_choice_draws_its_candidates_by_data_size(candidates, drawn):
    known = {
        site: answered(examples=float(number), loss=float(number))
        for number, site in enumerate(SITES, 1)
    }
    args = {} if candidates is None else {"candidates": candidates}
    for number in range(1, 20):
        weights = [float(place) for place in range(1, 11)]
        places = draw_places(weights, drawn, history(number=number).random)
        due = sorted(place + 1 for place in sorted(places)[-3:])
        section = sampler("power_of_choice", **args)
        assert numbers(sampled(section, SITES, 3, history(known, number))) == due


@pytest.mark.parametrize("kind", ["power_of_choice", "oort"])
def test_a_sampler_by_losses_names_itself_where_no_site_reports_one(kind):
    silent = {"site-1": answered(examples=3.0), "site-2": answered(times_failed=1)}
    with pytest.raises(WorkflowError) as refused:
        sampled(sampler(kind), SITES, 3, history(silent))
    assert f"clients.sampler {kind} chooses by the training loss" in str(refused.value)
    assert "send metrics={'train_loss': loss}" in str(refused.value)
    # Before the first answer, and where all have failed, nobody can have reported one.
    assert sampled(sampler(kind), SITES, 3, history({"site-2": silent["site-2"]}))


# Oort


def share(number, **args):
    return oort_share(OortSection(**args), number)


def utilities(records, number, **args):
    return oort_utilities(OortSection(**args), records, number)


def test_oorts_share_of_new_sites_decays_to_its_least():
    assert [share(number) for number in (1, 2, 3)] == [0.9, 0.9 * 0.98, 0.9 * 0.98 * 0.98]
    assert share(74) == pytest.approx(0.9 * 0.98**73)
    assert share(76) == share(10**9) == 0.2
    assert share(1000, exploration=0.5, exploration_decay=1) == 0.5


def test_oorts_utilities_are_those_of_the_paper():
    records = [
        answered(last=2, examples=10.0, loss=1.0, seconds=8.0),
        answered(last=4, examples=20.0, loss=2.0, seconds=30.0),
        answered(last=1, examples=30.0, loss=1.0, seconds=10.0),
        answered(last=1, examples=5.0, loss=2.0),
    ]
    # |B| loss is 10, 40, 30 and 10, which are scaled from 10 to 40 to 0 to 1.
    terms = [math.sqrt(0.1 * math.log(5) / last) for last in (2, 4, 1, 1)]
    plain = [0 + terms[0], 1 + terms[1], 2 / 3 + terms[2], 0 + terms[3]]
    assert utilities(records, 5, alpha=0) == pytest.approx(plain)
    slow = [plain[0], plain[1] * (12 / 30) ** 2, *plain[2:]]
    assert utilities(records, 5, preferred_duration=12) == pytest.approx(slow)
    slow = [plain[0], plain[1] * (8 / 30) ** 3, plain[2] * (8 / 10) ** 3, plain[3]]
    # 30% of those with a duration are not slower than the fastest.
    assert utilities(records, 5, alpha=3) == pytest.approx(slow)


def test_oort_clips_a_utility_beyond_the_others():
    records = [answered(examples=1.0, loss=float(loss)) for loss in [*range(1, 40), 1e9]]
    scores = utilities(records, 1)  # 95% are up to 39
    assert scores[-2:] == [1.0, 1.0]
    assert scores[19] == 19 / 38
    huge = [answered(examples=1e15, loss=loss) for loss in (1e300, -1e300, 1.0)]
    assert utilities(huge, 1) == [1.0, 1.0, 0.0]


def test_oort_explores_and_asks_the_rest_by_utility():
    known = {
        site: answered(examples=100.0, loss=float(number))
        for number, site in enumerate(SITES[:5], 1)
    }
    best, new = Counter(), Counter()
    for number in range(80, 180):  # 20% of 5 sites are new
        chosen = numbers(sampled(sampler("oort", cutoff=1), SITES, 5, history(known, number)))
        best.update(site for site in chosen if site <= 5)
        new.update(site for site in chosen if site > 5)
    # Of five sites the worst is beyond the cutoff, and those that are new have equal chances.
    assert best == {2: 100, 3: 100, 4: 100, 5: 100}
    assert {*new} == {6, 7, 8, 9, 10}
    assert new.total() == 100
    assert min(new.values()) > 8
    # A smaller cutoff admits it.
    wider = sampler("oort", cutoff=0.1)
    chosen = Counter(
        site
        for number in range(80, 180)
        for site in numbers(sampled(wider, SITES, 5, history(known, number)))
    )
    assert 0 < chosen[1] < chosen[5]


def test_oort_takes_known_sites_where_none_is_new_and_new_ones_where_few_are_known():
    known = {
        site: answered(examples=1.0, loss=float(number)) for number, site in enumerate(SITES, 1)
    }
    section = sampler("oort", cutoff=1)
    assert numbers(sampled(section, SITES, 3, history(known, 1))) == [8, 9, 10]
    few = {"site-4": known["site-4"]}
    late = sampled(section, SITES, 8, history(few, 1000))
    assert len(late) == 8
    assert "site-4" in late


# Round robin


def in_turn(recorded, rounds, away=lambda number: ()):
    """The sites of each round of two, which are all asked."""
    kept, asked = recorded("round_robin"), []
    for number in range(1, rounds + 1):
        here = [site for site in SITES[:5] if site not in away(number)]
        chosen = sampled(sampler("round_robin"), here, 2, kept.before(number))
        for site in chosen:
            kept.note(site, number, 1.0, {})
        asked.append(numbers(chosen))
    return asked


def test_round_robin_asks_all_in_turn_by_the_history_alone(recorded):
    turn = [[1, 2], [3, 4], [1, 5], [2, 3], [4, 5]]
    assert in_turn(recorded, 15) == turn * 3


def test_a_site_that_was_away_has_its_turn_once_it_is_back(recorded):
    away = {2: ["site-3"], 3: ["site-3"]}
    asked = in_turn(recorded, 6, lambda number: away.get(number, ()))
    assert asked == [[1, 2], [4, 5], [1, 2], [3, 4], [1, 5], [2, 3]]


# The history


def test_the_history_has_the_last_answer_of_each_site_that_was_asked(recorded):
    kept = recorded()
    assert kept.before(1).sites == {}
    kept.note("site-1", 1, 10.0, {"loss": 2.0, "train_loss": 1.0, "accuracy": 0.5}, 3.0)
    kept.note("site-1", 3, None, {}, None)
    kept.note("site-2", 3, 5.0, {"loss": 4.0, "train_loss": float("nan")})
    kept.note("site-2", 2, 6.0, {"loss": float("inf")})
    kept.note("site-3", 3, None, {})
    before = kept.before(4)
    assert before.round == 4
    assert before.sites == {
        "site-1": AskedSite(
            times_asked=2, times_failed=1, last_round=3, examples=10.0, loss=1.0, seconds=3.0
        ),
        "site-2": AskedSite(times_asked=2, times_failed=0, last_round=3, examples=6.0, loss=4.0),
        "site-3": AskedSite(times_asked=1, times_failed=1, last_round=3),
    }
    assert (
        before.random.random() == kept.before(4).random.random() != kept.before(5).random.random()
    )
    with pytest.raises(TypeError):
        before.sites["site-1"] = AskedSite()


# Samplers of one's own

MINE = """
class Longest:
    def __init__(self, reverse=False):
        self.reverse = reverse

    def sample(self, sites, count, history):
        rank = lambda site: (-history.sites[site].last_round if site in history.sites else 1)
        return sorted(sites, key=rank, reverse=not self.reverse)[:count]


class Returns:
    def __init__(self, value):
        self.value = value

    def sample(self, sites, count, history):
        return self.value


class Raises:
    def sample(self, sites, count, history):
        yield sites[0]
        raise KeyError("oops")


class Lacking:
    def smaple(self, sites, count, history): ...
"""


@pytest.fixture
def mine(tmp_path):
    """A section that names a class of the file above."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return lambda name, **args: sampler(f"{path}:{name}", **args)


def test_a_sampler_of_ones_own_chooses_in_any_order(mine):
    known = {"site-1": answered(last=4), "site-2": answered(last=2)}
    assert numbers(sampled(mine("Longest"), SITES, 9, history(known))) == [*range(2, 11)]
    reverse = mine("Longest", reverse=True)
    assert numbers(sampled(reverse, SITES, 2, history(known))) == [1, 2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned a NoneType for round 5; return a list of 3 of the names in sites"),
        ("site-1", "returned a str for round 5; return a list of 3 of the names"),
        (["site-1", "sit-2", "site-3"], "returned 'sit-2' (did you mean site-2?) for round 5; ret"),
        ([1, 2, 3], "returned 1 for round 5; return names in sites, which are site-1, "),
        ([["site-1"]], "returned ['site-1'] "),
        (
            ["site-1", "site-2", "site-1"],
            "returned site-1 twice for round 5; return each site once",
        ),
        (["site-1"], "returned 1 of 10 sites for round 5; return 3, as count says"),
        (SITES, "returned 10 of 10 sites for round 5; return 3"),
    ],
)
def test_a_wrong_choice_is_refused_by_the_name_of_its_sampler(mine, value, words):
    with pytest.raises(WorkflowError) as refused:
        sampled(mine("Returns", value=value), SITES, 3, history())
    assert "clients.sampler mine.py:Returns" in str(refused.value)
    assert words in str(refused.value)


def test_a_sampler_that_fails_is_named_with_its_line(mine, capfd):
    with pytest.raises(WorkflowError) as refused:
        sampled(mine("Raises"), SITES, 3, history())
    line = 1 + MINE.splitlines().index('        raise KeyError("oops")')
    words = (
        f"mine.py:Raises failed in round 5: mine.py, line {line} raised KeyError: 'oops'; mend it"
    )
    assert words in str(refused.value)
