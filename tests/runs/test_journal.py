"""However often a run is cut off, its journal gives the summary of one that ran through."""

import tracemalloc
from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import EffectScript, run_started

from flstream.errors import SimulationError
from flstream.runs.history import History
from flstream.runs.journal import Journal, read_history
from flstream.telemetry import event_log
from flstream.telemetry.events import (
    AnyEvent,
    ModelReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteLog,
    SiteUpdate,
    Warned,
    encode_lines,
)


def folded(events) -> History:
    journal = History()
    for event in events:
        journal.apply(event)
    return journal


def test_an_empty_journal_has_no_round_and_no_model(tmp_path):
    for history in (History(), read_history(tmp_path / "nowhere.jsonl")):
        assert (history.is_empty, history.status, history.seconds) == (True, "running", 0)
        assert history.last_round is None


def test_a_finished_run_is_finished_until_it_is_resumed(tmp_path):
    path, events = tmp_path / "events.jsonl", list(EffectScript(2, 1).events())
    assert folded(events).status == "finished"
    assert folded([*events[:-1], RunFinished(status="failed", error="why")]).status == "failed"
    more = [*events, RunResumed(round=2, effect=4), begun(2)]
    path.write_bytes(encode_lines(more))
    history = read_history(path)
    assert (history.status, history.facts.rounds) == ("running", 20)


def test_seconds_are_those_of_the_sittings_and_not_of_the_night_between():
    history = folded(
        [
            ModelReady(time=100.0, bytes=1, tensors=1, digest="d"),
            Warned(time=107.0, message="m"),
            SiteLog(time=110.0, round=1, site="site-1", key="k", value=1.0),
            RunResumed(time=5000.0, round=0, effect=0),
            Warned(time=5001.5, message="m"),
        ]
    )
    assert history.seconds == 11.5
    # A clock that is set back takes nothing away.
    history.apply(Warned(time=4000.0, message="m"))
    assert history.seconds == 11.5
    history.apply(RunResumed(time=10.0, round=0, effect=0))
    history.apply(Warned(time=12.0, message="m"))
    assert history.seconds == 13.5


@given(st.integers(0, 3000))
def test_a_torn_last_line_is_passed_over_wherever_it_was_torn(tmp_path, cut):
    path = tmp_path / "events.jsonl"
    events = list(EffectScript(2, 1).events())
    data = encode_lines(events)
    path.write_bytes(data[:cut])
    assert list(Journal(path)) == events[: data[:cut].count(b"\n")]


@pytest.mark.parametrize(
    "junk", [b"{", b"\x00" * 40, b'{"kind":"unheard_of"}', b"\xff", b"[" * 9999, None]
)
def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path, junk):
    path = tmp_path / "events.jsonl"
    lines = encode_lines(EffectScript(3, 1).events()).splitlines()
    place = next(n for n, line in enumerate(lines) if b'"round_finished"' in line) + 1
    lines[place] = lines[place].replace(b"1", b"2", 1) if junk is None else junk
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(SimulationError) as caught:
        read_history(path)
    assert f"{path}, line {place + 1}, is damaged" in str(caught.value)
    assert "cut it off before this line to go on from what came before" in str(caught.value)
    # And that is what one can do.
    path.write_bytes(b"\n".join(lines[:place]) + b"\n")
    assert read_history(path).last_round == 1


def begun(clients: int) -> RunStarted:
    return run_started(rounds=20, clients=clients)


def ended(number: int, weights: dict[str, float]) -> RoundFinished:
    return msgspec.structs.replace(EffectScript(20, 0).finished(number), weights=weights)


def peak_of_reading(path, raises=None):
    """The bytes that reading a journal took at the most; an error is expected if one is named."""
    tracemalloc.start()
    try:
        with pytest.raises(SimulationError, match=raises) if raises else nullcontext():
            read_history(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("flstream.telemetry.event_log._MOST_BYTES", 1 << 20)
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        file.write(encode_lines([begun(1000)]))
        file.truncate(1 << 30)
    assert peak_of_reading(path, "line 2, is damaged") < 8 << 20


@given(weights=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60))
def test_no_round_of_a_million_sites_has_a_line_that_is_too_long_to_be_read(weights):
    names = [f"site-{10**6 - index}" for index in range(len(weights))]
    told = dict(zip(names, weights, strict=True))
    nobody = len(encode_lines([ended(1, {})]))
    assert (len(encode_lines([ended(1, told)])) - nobody) / len(weights) <= 64
    assert event_log._MOST_BYTES > (64 << 20) + 64 * 10**6


def test_the_journal_of_a_million_clients_says_how_many_and_is_read_in_little_memory(tmp_path):
    path = tmp_path / "events.jsonl"
    million, sampled = 1_000_000, 200
    assert len(encode_lines([begun(million)])) < 320
    assert begun(million).sites[-1] == "site-1000000"
    script = EffectScript(20, 0)
    events: list[AnyEvent] = [begun(million), script.started()[-1]]
    for number in range(1, 6):
        cohort = [f"site-{million - 7 * number - 11 * index}" for index in range(sampled)]
        events.append(RoundStarted(round=number, sites=cohort))
        events += [SiteUpdate(round=number, site=s, weight=18.0, metrics={}) for s in cohort]
        events.append(ended(number, dict.fromkeys(cohort, 18.0)))
    path.write_bytes(encode_lines(events))
    # What counts is an entry for each site and round: nothing is there a million times.
    assert peak_of_reading(path) < 8 << 20
    assert read_history(path).last_round == 5


def test_a_line_may_be_as_long_as_a_message(tmp_path):
    path = tmp_path / "events.jsonl"
    script = EffectScript(20, 0)
    metrics = {f"class-{number:07d}": number / 3 for number in range(100_000)}
    told = SiteUpdate(round=1, site="site-1", weight=1.0, metrics=metrics)
    path.write_bytes(encode_lines([*script.started(), told, *script.round(1)]))
    assert read_history(path).last_round == 1
