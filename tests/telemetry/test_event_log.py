"""Events and results of effects come back as they were written, a line each."""

import json
import math
import os
import resource
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import SimulationError
from flstream.telemetry import events
from flstream.telemetry.event_log import EventLog, WholeLines
from flstream.telemetry.exact import decode_record, encode_record

STOPPED = events.RunFinished(status="stopped")
KINDS = [kind for kind in get_args(events.AnyEvent) if kind not in get_args(events.LiveEvent)]
PLAIN = {
    bool: st.booleans(),
    str: st.text(),
    int: st.integers(0, 2**31),
    float: st.floats(-1e12, 1e12),
    type(None): st.none(),
    msgspec.Raw: st.sampled_from([b"null", b'{"a": [1, 2.5]}', b'"\\n"']).map(msgspec.Raw),
}


def values(kind: Any, plain: Mapping[Any, Any] = PLAIN) -> st.SearchStrategy[Any]:
    """Any value of the type of an event's field, or any event of a kind."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in plain:
        return plain[kind]
    if origin is Literal:
        return st.sampled_from(args)
    if isinstance(kind, UnionType):
        return st.one_of(*(values(each, plain) for each in args))
    if origin in (dict, Mapping):
        return st.dictionaries(st.text(), values(args[1], plain), max_size=3)
    if origin is tuple:
        return st.tuples(*(values(each, plain) for each in args))
    if origin in (list, Sequence):
        return st.lists(values(args[0], plain), max_size=3)
    return st.builds(
        kind, **{field.name: values(field.type, plain) for field in msgspec.structs.fields(kind)}
    )


NOT_FINITE = {**PLAIN, float: st.sampled_from([0.5, math.nan, math.inf, -math.inf])}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=settings().max_examples // 4)
@given(st.data())
def test_an_event_comes_back_from_one_line_or_is_not_written_if_it_is_not_finite(kind, data):
    event = data.draw(values(kind))
    [line] = events.encode_lines([event]).splitlines()
    assert events.decode_event(line) == event
    event = data.draw(values(kind, NOT_FINITE))
    event.time = 1.5
    try:
        [line] = events.encode_lines([event]).splitlines()
    except SimulationError:
        return
    events.decode_event(line)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_event_that_must_have_a_finite_number_is_refused_by_name(bad, path):
    with EventLog(path) as log, pytest.raises(SimulationError, match=r"an event warned .*\.time"):
        log.write(events.Warned(time=bad, message="why"))
    assert path.read_bytes() == b""


def test_a_flipped_bit_changes_no_event_in_silence():
    event = events.Evaluated(
        round=3, metrics={"loss": 0.98}, seconds=1.5, down=events.Transfer(), version=3
    )
    line = events.encode_lines([event])
    for place in range(8 * len(line)):
        flipped = bytearray(line)
        flipped[place // 8] ^= 1 << place % 8
        try:
            decoded = events.decode_event(bytes(flipped))
        except ValueError:
            continue
        assert decoded == event, flipped


def test_a_line_ends_with_the_check_of_the_line_before_and_its_own():
    written = [events.RunFinished(status="stopped", error=text) for text in ("", "why", "}")]
    first, second, third = events.encode_lines(written).splitlines()
    assert first + b"\n" == events.encode_lines(written[:1])
    assert third + b"\n" == events.encode_lines(written[2:], json.loads(second)["check"].encode())
    assert events.checks_of(first) == (events.NO_CHECK, json.loads(second)["follows"].encode())
    assert events.checks_of(second[-60:] + b"\n") == events.checks_of(second)
    plain = {key: value for key, value in json.loads(second).items() if key != "check"}
    for line in (json.dumps(plain).encode(), second[:-2], b"", b'"}'):
        assert events.checks_of(line) is None
        with pytest.raises(msgspec.DecodeError):
            events.decode_event(line)


@given(st.binary(max_size=60))
def test_junk_is_not_an_event(line):
    with pytest.raises(msgspec.DecodeError):
        events.decode_event(line)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


@given(st.binary(max_size=200_000), st.integers(0, 3))
def test_a_torn_last_line_is_cut_off_before_anything_is_added(path, tail, count):
    whole = events.encode_lines([STOPPED] * count)
    path.write_bytes(whole + tail.replace(b"\n", b" "))
    with EventLog(path) as log:
        assert path.read_bytes() == whole
        log.write(STOPPED)
    assert path.read_bytes() == events.encode_lines([STOPPED] * (count + 1))


def test_a_durable_event_is_synced_and_a_journal_that_was_removed_takes_none(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes()))
    with EventLog(path) as log:
        log.write(STOPPED)
        assert synced == []
        log.write(STOPPED, durable=True)
        assert synced == [events.encode_lines([STOPPED] * 2)]
    with EventLog(path) as log:
        log.write(events.Warned(message="one"))
        path.unlink()
        with pytest.raises(SimulationError, match="it was removed while the run went on; put"):
            log.write(events.Warned(message="two"))


def test_an_event_that_the_disk_refuses_leaves_no_part_of_itself(path, monkeypatch):
    def refuse(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with EventLog(path) as log:
        log.write(STOPPED)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(SimulationError, match=r"events.jsonl cannot be written: No space"):
                log.write(STOPPED, durable=True)
        # It is there at once: a crash now would lose nothing.
        assert path.read_bytes() == events.encode_lines([STOPPED])
        log.write(STOPPED)
    assert path.read_bytes() == events.encode_lines([STOPPED] * 2)
    with pytest.raises(SimulationError, match=r"events.jsonl cannot be written: No such file"):
        EventLog(path.parent / "nowhere" / "events.jsonl")


def test_a_line_that_a_full_disk_takes_half_of_is_taken_back(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EventLog(path) as log:
        # The kernel then writes what still fits, and refuses the rest, as it does on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
        try:
            with pytest.raises(SimulationError, match="File too large"):
                log.write(events.RunFinished(status="stopped", error="x" * 1000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == b""


def test_whole_lines_come_numbered_and_a_torn_last_one_does_not(path, monkeypatch):
    path.write_bytes(b"one\ntwo\nthr")
    lines = WholeLines(path)
    assert [(lines.number, line) for line in lines] == [(1, b"one\n"), (2, b"two\n")]
    # One that is too long comes in pieces.
    monkeypatch.setattr("flstream.telemetry.event_log._MOST_BYTES", 6)
    path.write_bytes(b"0123456789\n")
    assert list(WholeLines(path)) == [b"012345", b"6789\n"]


class _Pair(NamedTuple):
    place: int
    names: list[str]


class _Kept(msgspec.Struct):
    metrics: dict[str, float]
    columns: list[float | None]
    raw: bytes
    pair: _Pair
    count: int
    inner: dict[str, bytes] | None = None


kept = st.builds(
    _Kept,
    metrics=st.dictionaries(st.text(), st.floats()),
    columns=st.lists(st.none() | st.floats()),
    raw=st.binary(),
    pair=st.builds(_Pair, st.integers(), st.lists(st.text())),
    count=st.integers(),
    inner=st.none() | st.dictionaries(st.text(), st.binary(), max_size=4),
)


@given(kept)
def test_a_record_comes_back_exactly(record):
    # A NaN is equal to itself in their words.
    assert repr(decode_record(encode_record(record), _Kept)) == repr(record)


@pytest.mark.parametrize("value", [None, 7, "nan", [1.5, float("inf")]])
def test_plain_results_are_records_and_another_record_is_refused(value):
    kind = list[float] if isinstance(value, list) else type(value)
    assert decode_record(encode_record(value), kind) == value
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        decode_record(b'{"place": "x"}', _Kept)
