"""Events come back as they were written, a line each."""

import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.errors import SimulationError
from flstream.telemetry.event_log import EventLog, WholeLines
from flstream.telemetry.events import (
    NO_CHECK,
    AnyEvent,
    Evaluated,
    LinkFacts,
    Metrics,
    ModelRecord,
    PrivacySpent,
    RoundFinished,
    RunFinished,
    SentUpdate,
    SiteLog,
    Transfer,
    WorkerActivity,
    checks_of,
    decode_event,
    encode_event,
    encode_lines,
)

KINDS = get_args(AnyEvent)
VALUES = {
    bool: st.booleans(),
    str: st.text(),
    int: st.integers(0, 2**62),
    float: st.floats(0, 1e12),
    list[str]: st.lists(st.text(), max_size=3),
    list[int]: st.lists(st.integers(0, 2**62), max_size=3),
    list[Literal["task", "received"]]: st.lists(st.sampled_from(["task", "received"])),
    int | None: st.none() | st.integers(0, 2**62),
    str | None: st.none() | st.text(),
    float | None: st.none() | st.floats(-1e9, 1e9),
    Metrics: st.dictionaries(st.text(), st.none() | st.floats(-1e9, 1e9), max_size=3),
    dict[str, float]: st.dictionaries(st.text(), st.floats(-1e9, 1e9), max_size=3),
    Mapping[str, float]: st.dictionaries(st.text(), st.floats(-1e9, 1e9), max_size=3),
    Mapping[str, str]: st.dictionaries(st.text(), st.text(), max_size=3),
    Mapping[str, SentUpdate]: st.dictionaries(
        st.text(), st.builds(SentUpdate, *[st.integers(0, 2**62)] * 5), max_size=2
    ),
    Mapping[str, Sequence[float | None]]: st.dictionaries(
        st.text(), st.lists(st.none() | st.floats(-1e9, 1e9), max_size=3), max_size=2
    ),
    dict[str, int]: st.dictionaries(st.text(), st.integers(0, 2**62), max_size=3),
    dict[str, LinkFacts]: st.dictionaries(
        st.text(), st.builds(LinkFacts, st.none() | st.floats(1, 1e12)), max_size=2
    ),
    Transfer: st.builds(
        Transfer, st.integers(0, 2**62), st.integers(0, 99), seconds=st.floats(0, 9)
    ),
    ModelRecord | None: st.none()
    | st.builds(ModelRecord, *[st.integers(0, 2**31)] * 3, st.text(), st.text()),
    PrivacySpent | None: st.none()
    | st.builds(PrivacySpent, st.none() | st.floats(0, 1e9), st.floats(1e-9, 1e9), st.floats(0, 1)),
    msgspec.Raw: st.sampled_from([b"null", b'{"a": [1, 2.5]}', b'"\\n"']).map(msgspec.Raw),
}


def events(kind: type) -> st.SearchStrategy[AnyEvent]:
    return st.builds(kind, **{f.name: values(f.type) for f in msgspec.structs.fields(kind)})


def values(kind: Any) -> st.SearchStrategy[Any]:
    if kind == dict[str, WorkerActivity]:
        return st.dictionaries(st.text(), events(WorkerActivity), max_size=2)
    return st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else VALUES[kind]


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_an_event_comes_back_as_it_was_from_one_line(kind, data):
    event = data.draw(events(kind))
    line = encode_event(event)
    assert b"\n" not in line
    assert decode_event(line) == event


def test_a_flipped_bit_changes_no_event_in_silence():
    event = Evaluated(round=3, metrics={"loss": 0.98}, seconds=1.5, down=Transfer())
    line = encode_event(event)
    for place in range(8 * len(line)):
        flipped = bytearray(line)
        flipped[place // 8] ^= 1 << place % 8
        try:
            found = decode_event(bytes(flipped))
        except ValueError:
            continue
        assert found == event, flipped


def test_a_line_ends_with_the_check_of_the_line_before_and_its_own():
    events = [RunFinished(status="stopped", error=text) for text in ("", "why", "}")]
    first, second, third = encode_lines(events).splitlines()
    assert first == encode_event(events[0])
    assert third == encode_event(events[2], json.loads(second)["check"].encode())
    assert checks_of(first) == (NO_CHECK, json.loads(second)["follows"].encode())
    assert checks_of(second[-60:] + b"\n") == checks_of(second)
    plain = {key: value for key, value in json.loads(second).items() if key != "check"}
    for line in (json.dumps(plain).encode(), second[:-2], b"", b'"}'):
        assert checks_of(line) is None
        with pytest.raises(msgspec.DecodeError):
            decode_event(line)


def test_every_event_says_its_kind_and_its_time():
    kinds = set()
    for kind in KINDS:
        config = kind.__struct_config__
        assert config.tag_field == "kind"
        kinds.add(config.tag)
        assert "time" in kind.__struct_fields__
    assert len(kinds) == len(KINDS)


@given(st.binary(max_size=60))
def test_junk_is_not_an_event(line):
    with pytest.raises(msgspec.DecodeError):
        decode_event(line)


def test_a_log_is_a_json_object_a_line_and_goes_on_where_it_was(tmp_path):
    path = tmp_path / "events.jsonl"
    first = SiteLog(round=1, site="site-1", key="loss\nof two lines", value=0.5)
    second = RunFinished(status="stopped")
    with EventLog(path) as log:
        log.write(first)
        # It is there at once: a crash now would lose nothing.
        assert decode_event(path.read_bytes().strip()) == first
    with EventLog(path) as log:
        log.write(second)
    lines = path.read_bytes().splitlines()
    assert [decode_event(line) for line in lines] == [first, second]
    assert [json.loads(line)["kind"] for line in lines] == ["site_log", "run_finished"]


@given(st.binary(max_size=200_000), st.integers(0, 3))
def test_a_torn_last_line_is_cut_off_before_anything_is_added(tmp_path, tail, count):
    path = tmp_path / "events.jsonl"
    event = RunFinished(status="stopped")
    whole = encode_lines([event] * count)
    torn = tail.replace(b"\n", b" ")
    path.write_bytes(whole + torn)
    with EventLog(path) as log:
        assert path.read_bytes() == whole
        log.write(event)
    assert path.read_bytes() == encode_lines([event] * (count + 1))


def test_a_durable_event_is_synced_and_another_is_not(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes()))
    event = RunFinished(status="stopped")
    with EventLog(path) as log:
        log.write(event)
        assert synced == []
        log.write(event, durable=True)
        assert synced == [encode_lines([event] * 2)]


def test_an_event_that_the_disk_refuses_leaves_no_part_of_itself(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    event = RunFinished(status="stopped")
    with EventLog(path) as log:
        log.write(event)

        def refuse(fd: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(SimulationError, match=r"events.jsonl cannot be written: No space"):
                log.write(event, durable=True)
        assert path.read_bytes() == encode_lines([event])
        log.write(event)
    assert path.read_bytes() == encode_lines([event] * 2)


def _fill(path: Path, size: int) -> None:
    # The kernel then writes what still fits, and refuses the rest, as it does on a full disk.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    with EventLog(path) as log:
        try:
            log.write(RunFinished(status="stopped", error="x" * 1000))
        except SimulationError:
            log.write(RunFinished(status="stopped"))


def test_a_line_that_a_full_disk_takes_half_of_is_taken_back(tmp_path):
    path = tmp_path / "events.jsonl"
    process = multiprocessing.get_context("spawn").Process(target=_fill, args=(path, 500))
    process.start()
    process.join()
    assert process.exitcode == 0
    [line] = path.read_bytes().splitlines()
    assert decode_event(line).error == ""


def test_a_log_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(SimulationError, match=r"events.jsonl cannot be written: No such file"):
        EventLog(tmp_path / "nowhere" / "events.jsonl")


def test_a_round_keeps_its_transfers():
    event = RoundFinished(
        round=1,
        digest="d",
        download=1.0,
        train=2.0,
        upload_and_fold=3.0,
        checkpoint=4.0,
        weights={"site-1": 1.0},
        metrics={},
        down=Transfer(1, 2, 3, 4, 5.0),
        up=Transfer(),
    )
    assert json.loads(encode_event(event))["down"] == {
        "bytes": 1,
        "requests": 2,
        "chunks": 3,
        "retries": 4,
        "seconds": 5.0,
        "reused": 0,
        "encoded": 0,
        "with_base": 0,
    }


def test_whole_lines_come_numbered_and_a_torn_last_one_does_not(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    lines = WholeLines(path, 10)
    assert [(lines.number, line) for line in lines] == [(1, b"one\n"), (2, b"two\n")]


def test_a_line_that_is_too_long_comes_in_pieces_until_more_is_allowed(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"0123456789\n0123456789\n")
    lines, found = WholeLines(path, 6), []
    for line in lines:
        found.append(line)
        lines.most = 20 if len(found) == 2 else lines.most
    assert found == [b"012345", b"6789\n", b"0123456789\n"]
