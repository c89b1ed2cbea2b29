"""However often a run is cut off, its journal gives the summary of one that ran through."""

import tracemalloc
from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import EffectScript

from flstream.errors import SimulationError
from flstream.runs.counted_events import COUNTED
from flstream.runs.history import History
from flstream.runs.journal import read_history
from flstream.runs.summary import summarize
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    Evaluated,
    ModelReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteBenched,
    SiteFailed,
    SiteLog,
    SiteUpdate,
    Warned,
    encode_event,
    encode_lines,
    most_line_bytes,
)


def folded(events) -> History:
    journal = History()
    for event in events:
        journal.apply(event)
    return journal


def test_a_run_that_was_not_interrupted_counts_as_it_is():
    events = list(EffectScript(4, 2).events())
    journal = folded(events)
    assert list(journal.events()) == [event for event in events if isinstance(event, COUNTED)]
    assert (journal.last_round, journal.is_finished, journal.planned_rounds) == (4, True, 4)
    assert [journal.digest(number) for number in range(5)] == [f"digest-{n}" for n in range(5)]


def test_an_empty_journal_has_no_round_and_no_model(tmp_path):
    for journal in (History(), read_history(tmp_path / "nowhere.jsonl")):
        assert (journal.is_empty, journal.is_finished, journal.seconds) == (True, False, 0)
        assert journal.last_round is None
        assert list(journal.events_until(None)) == []


def test_a_finished_run_is_finished_until_it_is_resumed():
    events = list(EffectScript(2, 1).events())
    assert folded(events).is_finished
    assert not folded([*events[:-1], RunFinished(status="failed", error="why")]).is_finished
    more = folded([*events, RunResumed(round=2)])
    assert not more.is_finished
    more.apply(RunStarted(job="j", seed=0, rounds=5, clients=2, mode="pull", chunk_size=16))
    assert more.planned_rounds == 5


def test_seconds_are_those_of_the_sittings_and_not_of_the_night_between():
    journal = folded(
        [
            ModelReady(time=100.0, bytes=1, tensors=1, digest="d"),
            Warned(time=107.0, message="m"),
            SiteLog(time=110.0, round=1, site="site-1", key="k", value=1.0),
            RunResumed(time=5000.0, round=0),
            Warned(time=5001.5, message="m"),
        ]
    )
    assert journal.seconds == 11.5
    # A clock that is set back takes nothing away.
    journal.apply(Warned(time=4000.0, message="m"))
    assert journal.seconds == 11.5
    journal.apply(RunResumed(time=10.0, round=0))
    journal.apply(Warned(time=12.0, message="m"))
    assert journal.seconds == 13.5


@given(st.integers(0, 3000))
def test_a_torn_last_line_is_passed_over_wherever_it_was_torn(tmp_path, cut):
    path = tmp_path / "events.jsonl"
    events = list(EffectScript(2, 1).events())
    data = encode_lines(events)
    path.write_bytes(data[:cut])
    whole = events[: data[:cut].count(b"\n")]
    assert list(read_history(path).events()) == list(folded(whole).events())


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
    assert "cut it off before this line to go on from round 1" in str(caught.value)
    # And that is what one can do.
    path.write_bytes(b"\n".join(lines[:place]) + b"\n")
    assert read_history(path).last_round == 1


def begun(clients: int) -> RunStarted:
    return RunStarted(job="j", seed=0, rounds=20, mode="pull", chunk_size=16, clients=clients)


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
    monkeypatch.setattr("flstream.telemetry.events._EVENT_BYTES", 1 << 20)
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        file.write(encode_event(begun(1000)) + b"\n")
        file.truncate(1 << 30)
    assert peak_of_reading(path, "line 2, is damaged") < 8 << 20


@given(
    weights=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    clients=st.integers(0, 10**7),
)
def test_no_round_has_a_line_that_is_too_long_to_be_read(weights, clients):
    """What a site adds is bounded, so what all of them add is."""
    names = [f"site-{clients - index}" for index in range(len(weights))]
    told = dict(zip(names, weights, strict=True))
    nobody = len(encode_event(ended(1, {})))
    assert (len(encode_event(ended(1, told))) - nobody) / len(weights) <= 64
    assert nobody + 64 * clients <= most_line_bytes(clients)


def test_the_journal_of_a_million_clients_says_how_many_and_is_read_in_little_memory(tmp_path):
    path = tmp_path / "events.jsonl"
    million, sampled = 1_000_000, 200
    assert len(encode_event(begun(million))) < 320
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


def test_every_kind_that_a_summary_uses_is_kept():
    """An event that is heeded and dropped would be lost with the first interruption."""
    script = EffectScript(2, 1)
    begun = [*script.started(), *script.round(1)]
    before = msgspec.json.encode(summarize(folded(begun)))
    events = [
        *script.events(),
        SiteFailed(round=1, site="site-1", reason="r"),
        SiteBenched(round=1, site="site-1", failures=1),
        RunResumed(round=0, warnings=["w"]),
        EndedEarly(round=1, reason="r"),
    ]
    used = set()
    for event in events:
        history = folded(begun)
        history.totals.apply(event)
        if msgspec.json.encode(summarize(history)) != before:
            used.add(type(event))
    assert used <= set(COUNTED)
    assert {SiteFailed, SiteBenched, RunResumed, EndedEarly, Evaluated, RoundFinished} <= used
