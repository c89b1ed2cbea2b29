"""A site that fails too often in a row is benched, and that follows from a run's events alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.simulator.rounds.failures import FailureRecord, brief
from flstream.telemetry.events import RoundFinished, SiteBenched, SiteFailed, Transfer


def failed(number, *sites):
    return [SiteFailed(round=number, site=site, reason="it died") for site in sites]


def finished(number, *sites):
    return RoundFinished(
        round=number,
        digest="d",
        download=0.0,
        train=0.0,
        upload_and_fold=0.0,
        checkpoint=0.0,
        weights=dict.fromkeys(sites, 1.0),
        metrics={},
        down=Transfer(),
        up=Transfer(),
    )


@given(st.text(max_size=5000))
def test_a_reason_is_kept_as_it_is_unless_it_is_too_long_for_an_event(reason):
    told = brief(reason)
    assert told == reason or (len(reason) > 2000 and len(told) < 2100)
    assert (told[:1000], told[-1000:]) == (reason[:1000], reason[-1000:])


def test_two_failures_in_a_row_are_enough_and_one_is_not():
    record = FailureRecord(2, [*failed(1, "a"), finished(1, "b")])
    assert record.due() == []
    for event in [*failed(2, "a"), finished(2, "b")]:
        record.note(event)
    assert record.due() == ["a"]
    record.note(SiteBenched(round=2, site="a", failures=2))
    assert record.due() == []
    assert record.benched == ["a"]


def test_a_round_that_went_well_in_between_starts_the_count_anew():
    events = [*failed(1, "a"), finished(1, "b"), finished(2, "a", "b"), *failed(3, "a")]
    assert FailureRecord(2, [*events, finished(3, "b")]).due() == []


def test_a_round_in_which_a_site_was_not_sampled_changes_nothing():
    events = [*failed(1, "a"), finished(1, "b"), finished(2, "b"), *failed(3, "a")]
    assert FailureRecord(2, [*events, finished(3, "b")]).due() == ["a"]


def test_a_site_fails_at_most_once_a_round():
    assert FailureRecord(2, [*failed(1, "a", "a"), finished(1, "b")]).due() == []


def test_zero_is_never():
    events = [event for number in range(1, 9) for event in (*failed(number, "a"), finished(number))]
    assert FailureRecord(0, events).due() == []


@pytest.mark.parametrize("most", [1, 3])
def test_the_setting_is_how_many_it_takes(most):
    record = FailureRecord(most)
    for number in range(1, most + 1):
        assert record.due() == []
        for event in [*failed(number, "a"), finished(number, "b")]:
            record.note(event)
    assert record.due() == ["a"]


ROUNDS = st.lists(st.sets(st.sampled_from("abc")), max_size=8)


@given(ROUNDS, st.integers(1, 3), st.integers(0, 30))
def test_a_record_made_from_the_events_is_the_one_that_was_kept(rounds, most, cut):
    kept, events = FailureRecord(most), []

    def tell(event):
        kept.note(event)
        events.append(event)

    for number, failing in enumerate(rounds, start=1):
        asked = [site for site in "abc" if site not in kept.benched]
        for event in failed(number, *(site for site in asked if site in failing)):
            tell(event)
        tell(finished(number, *(site for site in asked if site not in failing)))
        for site in kept.due():
            tell(SiteBenched(round=number, site=site, failures=most))
    again = FailureRecord(most, events[:cut])
    for event in events[cut:]:
        again.note(event)
    assert (again.benched, again.due()) == (kept.benched, kept.due())
    for site in kept.benched:
        assert any(
            all(site in each for each in rounds[first : first + most])
            for first in range(len(rounds) - most + 1)
        )
