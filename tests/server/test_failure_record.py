"""A site that fails too often in a row is benched, and that follows from the journal alone."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.server.collector import brief
from flstream.server.fleet import Fleet


@given(st.text(max_size=5000))
def test_a_reason_is_kept_as_it_is_unless_it_is_too_long_for_an_event(reason):
    shown = brief(reason)
    assert shown == reason or (len(reason) > 2000 and len(shown) < 2100)
    assert (shown[:1000], shown[-1000:]) == (reason[:1000], reason[-1000:])


@pytest.mark.parametrize(
    ("most", "rounds", "benched"),
    [
        (1, [("a", "b")], [["a"]]),
        (2, [("a", "b"), ("a", "b"), ("", "b")], [[], ["a"], []]),
        (3, [("a", "b")] * 3, [[], [], ["a"]]),
        (0, [("a", "b")] * 9, [[]] * 9),
        # A round that went well starts the count anew, and one without the site changes nothing.
        (2, [("a", "b"), ("", "ab"), ("a", "b")], [[], [], []]),
        (2, [("a", "b"), ("", "b"), ("a", "b")], [[], [], ["a"]]),
        # It fails at most once a round; an evaluation after the last model counts, too.
        (2, [("aa", "b")], [[]]),
        (2, [("a", "ab"), ("a", "ab")], [[], ["a"]]),
    ],
)
def test_so_many_failures_in_a_row_are_enough(most, rounds, benched):
    clients = SimpleNamespace(site_names=["a", "b"], suspend_after=most)
    fleet, asked = Fleet(SimpleNamespace(clients=clients, devices_come_and_go=False)), ["a", "b"]
    for (failing, contributing), due in zip(rounds, benched, strict=True):
        fleet.note_failures(failing)
        assert fleet.sites == asked  # it counts once the round is settled
        assert list(fleet.settle_failures(contributing)) == due
        asked = [site for site in asked if site not in due]
        assert fleet.sites == asked
