"""What sites logged counts once, wherever a run was interrupted and went on."""

from pathlib import Path

import pytest
from journal_support import folded

from flstream.errors import SimulationError
from flstream.runs.body_records import RECORDED, read_bodies
from flstream.runs.journal import read_events, read_history
from flstream.telemetry.events import (
    AnyEvent,
    ModelReady,
    ModelReceived,
    RoundStarted,
    RunResumed,
    RunStarted,
    SentUpdate,
    SiteLog,
    SitesBeganAnew,
    Transfer,
    UpdatesReceived,
    UpdateTakenUp,
    encode_event,
    encode_lines,
)


def started() -> list[AnyEvent]:
    return [
        RunStarted(job="job", seed=7, rounds=3, clients=2, mode="pull", chunk_size=16),
        ModelReady(bytes=160, tensors=2, digest="initial"),
    ]


def logged(*values: float, round_number: int = 1, site: str = "site-1") -> list[AnyEvent]:
    return [SiteLog(round=round_number, site=site, key="loss", value=value) for value in values]


def resumed(effect: int, round_number: int | None = 0) -> RunResumed:
    return RunResumed(round=round_number, effect=effect)


def counting(path: Path, *events: AnyEvent, torn: bytes = b"") -> list[float]:
    """The values that count of those that were logged."""
    path.write_bytes(encode_lines(events) + torn)
    history = read_history(path, note_lines_of=(SiteLog,))
    return [each.value for each in read_events(path, history.lines)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_a_round_that_is_done_again_leaves_one_point(journal):
    events = [
        *started(), *logged(1, 2), folded(1), *logged(3),
        resumed(1, 1), *logged(4, 5), folded(2), *logged(6),
    ]  # fmt: skip
    assert counting(journal, *events) == [1, 2, 4, 5, 6]


def test_of_a_run_that_is_killed_many_times_in_a_round_the_last_attempt_counts(journal):
    events = [*started(), *logged(1), folded(1)]
    for attempt in range(20):
        events += [*logged(100 + attempt), resumed(1, 1)]
    assert counting(journal, *events, *logged(2), folded(2)) == [1, 2]


def test_a_run_that_begins_anew_has_none_of_before(journal):
    events = [*logged(1), *started(), *logged(2), resumed(0, None), *logged(3), *started()[1:]]
    assert counting(journal, *events) == [3]


def test_going_back_to_the_initial_model_keeps_what_came_before_it(journal):
    assert counting(journal, *logged(1), *started(), *logged(2), resumed(0)) == [1]


def test_going_back_over_several_effects_takes_the_points_of_all_of_them(journal):
    events = [*started(), *logged(1), folded(1), *logged(2), folded(2), *logged(3)]
    assert counting(journal, *events, resumed(1, 1), *logged(4)) == [1, 4]


def test_a_training_whose_update_is_taken_up_keeps_its_points(journal):
    whole = logged(1, 2, site="site-1")
    events = [*started(), *whole, *logged(3, site="site-2"), resumed(0)]
    events += [UpdateTakenUp(round=1, site="site-1"), *logged(4, site="site-2"), folded(1)]
    assert counting(journal, *events) == [1, 2, 4]


def test_it_keeps_them_also_where_the_run_is_killed_once_more(journal):
    taken_up = UpdateTakenUp(round=1, site="site-1")
    events = [*started(), *logged(1, site="site-1"), *logged(2, site="site-2")]
    events += [resumed(0), taken_up, *logged(3, site="site-2")]
    events += [resumed(0), taken_up, taken_up, *logged(4, site="site-2"), folded(1)]
    assert counting(journal, *events) == [1, 4]
    assert counting(journal, *events[:-4], *logged(4, site="site-1")) == [4]


def test_sites_that_begin_a_task_anew_leave_the_points_of_the_last_attempt(journal):
    events = [*started(), *logged(1), RoundStarted(round=1, sites=["site-1", "site-2"])]
    events += [*logged(2), *logged(3, site="site-2"), *logged(4, site="site-3")]
    events += [SitesBeganAnew(round=1, sites=["site-1", "site-2"]), *logged(5), folded(1)]
    assert counting(journal, *events) == [1, 4, 5]
    again = SitesBeganAnew(round=1, sites=["site-1"])
    assert counting(journal, *events, *logged(6), again, *logged(7)) == [1, 4, 5, 7]


def test_points_of_another_round_are_not_of_the_training_that_is_taken_up(journal):
    events = [*started(), *logged(1), *logged(2, round_number=2), resumed(0)]
    assert counting(journal, *events, UpdateTakenUp(round=2, site="site-1")) == [2]


def received(*sites: str, made: int = 0) -> list[AnyEvent]:
    return [
        ModelReceived(
            round=1,
            effect=1,
            task="train",
            sites=list(sites),
            digest="d",
            made=made,
            origin="server",
            tags=["pulled"],
            size=160,
            cost=Transfer(bytes=160),
        )
    ]


def receipts(path: Path, *events: AnyEvent) -> list[tuple[str, int]]:
    """Sites with models that count as received, and what these say of their round."""
    path.write_bytes(encode_lines(events))
    history = read_history(path, note_lines_of=(ModelReceived,))
    return [(each.site, each.made) for each in read_bodies(path, history)]


def test_a_line_for_several_sites_counts_for_those_whose_updates_are_taken_up(journal):
    events = [*started(), *received("site-1", "site-2", "site-3"), resumed(0)]
    events += [UpdateTakenUp(round=1, site="site-2"), *received("site-1", "site-3", made=7)]
    due = [("site-2", 0), ("site-1", 7), ("site-3", 7)]
    assert receipts(journal, *events) == due
    assert receipts(journal, *events, folded(1)) == due


def test_a_line_for_several_sites_counts_no_more_for_those_that_begin_anew(journal):
    events = [*started(), RoundStarted(round=1, sites=["site-1", "site-2"])]
    events += received("site-1", "site-2")
    events += [SitesBeganAnew(round=1, sites=["site-2"]), *received("site-2", made=7)]
    assert receipts(journal, *events) == [("site-1", 0), ("site-2", 7)]


def test_an_update_that_is_folded_once_more_is_recorded_once(journal):
    def sent(size: int) -> AnyEvent:
        return UpdatesReceived(
            round=1,
            effect=1,
            task="train",
            base="d",
            receiver="server",
            tags=["pulled", "FULL"],
            updates={"site-1": SentUpdate(160, size)},
        )

    events = [*started(), *received("site-1"), sent(1), resumed(0)]
    events += [UpdateTakenUp(round=1, site="site-1"), sent(2), folded(1)]
    path = journal
    path.write_bytes(encode_lines(events))
    history = read_history(path, note_lines_of=RECORDED)
    found = [(each.direction, each.bytes) for each in read_bodies(path, history)]
    assert found == [("received", 160), ("sent", 2)]


def test_a_torn_last_line_is_no_point(journal):
    assert counting(journal, *started(), *logged(1), torn=b'{"kind":"site_log","val') == [1]


def test_a_journal_without_points_need_not_be_there(tmp_path):
    assert list(read_events(tmp_path / "events.jsonl", [])) == []


def test_a_journal_that_changes_while_it_is_read_is_an_error(journal):
    counting(journal, *started(), *logged(1))
    with pytest.raises(SimulationError, match="was changed while it was read"):
        list(read_events(journal, [3]))


def test_nothing_is_noted_unless_somebody_asks(journal):
    counting(journal, *started(), *logged(1))
    assert read_history(journal).lines == []


def test_text_and_steps_survive_the_journal(journal):
    events = [
        SiteLog(round=1, site="site-1", key="note", value=None, text="two\nlines"),
        SiteLog(round=1, site="site-1", key="loss", value=0.5, step=12),
    ]
    journal.write_bytes(encode_lines(events))
    assert list(read_events(journal, [0, len(encode_event(events[0])) + 1])) == events
