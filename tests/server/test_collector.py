"""Answers are gathered until enough are in, or too few are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.errors import SimulationError
from flstream.job.time_section import RoundEnd
from flstream.server import collector as module
from flstream.server.collector import ResultCollector, TaskWaits
from flstream.worker.messages import SiteAnswer

COHORT = ["site-1", "site-2", "site-3", "site-4"]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def test_answers_are_in_the_order_of_the_cohort_whatever_that_of_arrival():
    collector = ResultCollector("train round 1", COHORT, least=1)
    for site in ("site-4", "site-1", "site-3"):
        collector.answer(SiteAnswer(site, 1.0, {}))
    assert list(collector.in_order) == ["site-1", "site-3", "site-4"]


def test_too_few_left_is_an_error_that_names_each_site_and_its_reason():
    collector = ResultCollector("train round 7", COHORT, least=3)
    collector.answer(SiteAnswer("site-2", 1.0, {}))
    collector.fail("site-2", "it died")  # it has no part though it had answered
    assert (collector.in_order, collector.failures) == ({}, {"site-2": "it died"})
    with pytest.raises(SimulationError) as caught:
        collector.fail("site-4", "it lied")
    assert str(caught.value) == (
        "site-2: it died; its log is sites/site-2/log.txt; "
        "site-4: it lied; its log is sites/site-4/log.txt; "
        "so 2 of 4 sites are left to train round 7, and 3 have to (clients.min_updates)"
    )


def test_of_very_many_that_failed_some_are_named_and_the_rest_counted():
    cohort = [f"site-{number}" for number in range(1, 1001)]
    collector = ResultCollector("train round 1", cohort, least=0)
    for site in cohort:
        collector.fail(site, f"it died of {site}")
    told = collector.reasons()
    assert "site-100: it died" in told
    assert "site-101: it died" not in told
    assert told.endswith("; and 900 more, which summary.json names")


def test_sites_with_the_same_error_are_named_together():
    collector = ResultCollector("train round 1", COHORT, least=0)
    for site in COHORT:
        collector.fail(site, "it lied" if site == "site-2" else "it died")
    assert collector.reasons() == (
        "site-1, site-3, site-4: it died; their logs are as sites/site-1/log.txt; "
        "site-2: it lied; its log is sites/site-2/log.txt"
    )


def test_nobody_is_late_until_enough_have_answered_and_patience_is_over(clock):
    collector = ResultCollector("train round 1", COHORT, least=2, end=RoundEnd(2, 5.0))
    without_patience = ResultCollector("train round 1", COHORT, least=1)
    without_patience.answer(SiteAnswer("site-1", 1.0, {}))
    collector.answer(SiteAnswer("site-3", 1.0, {}))
    clock.now += 1000
    assert collector.late == ()
    collector.answer(SiteAnswer("site-1", 1.0, {}))
    clock.now += 4.9
    assert collector.late == ()
    # Those that have failed are not waited for, and a further answer gives no more time.
    collector.fail("site-2", "it died")
    clock.now += 0.1
    assert collector.late == ["site-4"]
    assert without_patience.late == ()


@given(st.permutations(COHORT), st.sets(st.sampled_from(COHORT)))
def test_settled_is_how_many_from_the_first_have_no_gap(order, failing):
    collector = ResultCollector("train round 1", COHORT, least=0)
    assert collector.settled == 0
    known = set()
    for site in order:
        known.add(site)
        if site in failing:
            collector.fail(site, "it died")
        else:
            collector.answer(SiteAnswer(site, 1.0, {}))
        assert set(COHORT[: collector.settled]) <= known
        assert collector.settled == 4 or COHORT[collector.settled] not in known
    assert collector.settled == 4


def test_a_run_is_given_up_for_the_silence_of_sites_and_not_for_what_it_does_itself(clock):
    def events():
        yield True
        clock.now += 0.5
        yield False
        clock.now += 0.6
        yield False

    expected = TaskWaits(progress=1.0).expecting(events(), "train task", 3, lambda: ["site-1"])
    assert next(expected)
    clock.now += 60.0  # such as for the sum of what has come
    assert not next(expected)
    with pytest.raises(SimulationError, match="nothing came of the train task of round 3 for 1 s"):
        next(expected)
