"""A tracker is given every point that counts once, from a journal that is cut off at any place."""

import math

import pytest
from journal_support import folded
from recording import BEGAN, Fed, evaluated, finished, logged, resumed, started, trained

from flstream.telemetry.events import (
    SiteLog,
    encode_lines,
)


@pytest.fixture
def fed(tmp_path):
    fed = Fed(tmp_path)
    fed.write()
    return fed


def test_a_run_is_told_of_as_it_goes_on(fed):
    fed.feed.catch_up()
    assert fed.made == []
    fed.tell(*started())
    assert fed.tracker.run == ("job", fed.run.path, BEGAN)
    fed.tell(*trained(1, "site-1"))
    assert fed.tracker.values("site-1", "train/loss") == [(1, 0.5)]
    assert fed.tracker.values("site-1", "weight") == [(1, 2.0)]
    assert fed.tracker.flushed == 2
    fed.tell(folded(1), evaluated(1, 0.75), finished(1))
    found = {name: value for source, name, step, value in fed.tracker.points if source == "global"}
    assert found == {
        "accuracy": 0.75, "seconds/evaluate": 0.5, "bytes/evaluate": 30.0, "train/loss": 0.5,
        "seconds/download": 1.0, "seconds/train": 2.0, "seconds/upload_and_fold": 3.0,
        "seconds/checkpoint": 4.0, "bytes/down": 10.0, "bytes/up": 20.0,
    }  # fmt: skip
    fed.feed.close()
    assert len(fed.made) == 1
    assert fed.tracker.is_closed


def test_values_are_at_their_step_or_else_at_the_round(fed):
    text = SiteLog(round=2, site="site-1", key="note", value=None, text="hello")
    fed.tell(*started(), logged(1.0, 2), logged(2.0, 2, step=40), text, logged(3.0, 2, site=""))
    assert fed.tracker.values("site-1", "k") == [(2, 1.0), (40, 2.0)]
    assert fed.tracker.values("site-1", "note") == [(2, "hello")]
    assert fed.tracker.values("global", "k") == [(2, 3.0)]
    fed.tell(logged(math.inf, 3))
    assert math.isnan(fed.tracker.values("site-1", "k")[-1][1])


def test_a_torn_last_line_is_left_for_later_and_a_damaged_one_an_error(fed):
    fed.write(*started())
    line = encode_lines([logged(1.0, 1)])
    with fed.run.events.open("ab") as file:
        file.write(line[:50])
    fed.feed.catch_up()
    assert fed.tracker.points == []
    with fed.run.events.open("ab") as file:
        file.write(line[50:])
    fed.feed.catch_up()
    assert fed.tracker.values("site-1", "k") == [(1, 1.0)]
    with fed.run.events.open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(ValueError, match="JSON"):
        fed.feed.catch_up()


def test_memory_is_the_highest_of_each_round(fed):
    mib = 1 << 20
    fed.write(*started())
    fed.write_memory(
        (1.0, "server", 110 * mib, 60 * mib), (1.0, "site-1", 170 * mib, 70 * mib),
        (2.0, "server", 120 * mib, None), (2.0, "site-1", 160 * mib, None),
    )  # fmt: skip
    fed.tell(folded(1), finished(1, time=2.5))
    assert fed.tracker.values("global", "memory/all_processes") == []  # there may be more samples
    fed.write_memory((3.0, "server", 105 * mib, None), (3.0, "site-1", 150 * mib, None))
    fed.feed.catch_up()
    assert fed.tracker.values("global", "memory/server_over_idle") == [(1, 20.0 * mib)]
    assert fed.tracker.values("site-1", "memory/over_idle") == [(1, 20.0 * mib)]
    assert fed.tracker.values("global", "memory/all_processes") == [(1, 130.0 * mib)]
    fed.tell(folded(2), finished(2, time=3.5))
    fed.feed.close()
    assert fed.tracker.values("global", "memory/server_over_idle")[1:] == [(2, 5.0 * mib)]
    assert fed.tracker.values("site-1", "memory/over_idle")[1:] == [(2, 0.0)]


def test_memory_of_what_is_void_belongs_to_no_round(fed):
    mib = 1 << 20
    fed.write(*started(), resumed(0, time=2.0), folded(1), finished(1, time=4.0))
    fed.write_memory((1.0, "server", 900 * mib, None), (3.0, "server", 101 * mib, None))
    fed.feed.close()
    assert fed.tracker.values("global", "memory/server_over_idle") == [(1, 1.0 * mib)]
