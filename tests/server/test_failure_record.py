"""A site that fails too often in a row is benched, and that follows from the journal alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.server.failures import FailureRecord, brief


@given(st.text(max_size=5000))
def test_a_reason_is_kept_as_it_is_unless_it_is_too_long_for_an_event(reason):
    shown = brief(reason)
    assert shown == reason or (len(reason) > 2000 and len(shown) < 2100)
    assert (shown[:1000], shown[-1000:]) == (reason[:1000], reason[-1000:])


def play(record, *rounds):
    """Rounds of the sites that failed and those that contributed; what was benched in each."""
    benched = []
    for failing, contributing in rounds:
        record.failed(failing)
        benched.append(record.settle(contributing))
    return benched


def test_two_failures_in_a_row_are_enough_and_one_is_not():
    record = FailureRecord(2)
    assert play(record, ("a", "b"), ("a", "b"), ("", "b")) == [[], ["a"], []]
    assert record.benched == ["a"]


def test_a_round_that_went_well_in_between_starts_the_count_anew():
    assert play(FailureRecord(2), ("a", "b"), ("", "ab"), ("a", "b")) == [[], [], []]


def test_a_round_in_which_a_site_was_not_sampled_changes_nothing():
    assert play(FailureRecord(2), ("a", "b"), ("", "b"), ("a", "b")) == [[], [], ["a"]]


def test_a_site_fails_at_most_once_a_round():
    assert play(FailureRecord(2), ("aa", "b")) == [[]]


def test_a_failed_evaluation_counts_beside_a_training_that_went_well():
    record = FailureRecord(2)
    for benched in ([], ["a"]):
        record.failed("a")  # in the evaluation after the last model
        assert record.settle("ab") == benched


def test_zero_is_never():
    assert play(FailureRecord(0), *[("a", "b")] * 9) == [[]] * 9


@pytest.mark.parametrize("most", [1, 3])
def test_the_setting_is_how_many_it_takes(most):
    expected = [[]] * (most - 1) + [["a"]]
    assert play(FailureRecord(most), *[("a", "b")] * most) == expected


ROUNDS = st.lists(st.sets(st.sampled_from("abc")), max_size=8)


@given(ROUNDS, st.integers(1, 3))
def test_who_is_benched_has_failed_so_often_in_a_row(rounds, most):
    record = FailureRecord(most)
    for failing in rounds:
        asked = [site for site in "abc" if site not in record.benched]
        record.failed(site for site in asked if site in failing)
        record.settle(site for site in asked if site not in failing)
    for site in record.benched:
        assert any(
            all(site in each for each in rounds[first : first + most])
            for first in range(len(rounds) - most + 1)
        )


def test_what_is_noted_counts_once_it_is_final():
    record = FailureRecord(1)
    record.failed("a")
    assert record.benched == []
    assert record.settle() == ["a"]
