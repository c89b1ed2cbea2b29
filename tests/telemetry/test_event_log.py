"""Events come back as they were written, a line each."""

import json
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.telemetry.events import (
    AnyEvent,
    EventLog,
    Metrics,
    RoundFinished,
    RunFinished,
    SiteLog,
    Transfer,
    decode_event,
    encode_event,
)

KINDS = get_args(AnyEvent)
VALUES = {
    str: st.text(),
    int: st.integers(0, 2**62),
    float: st.floats(0, 1e12),
    list[str]: st.lists(st.text(), max_size=3),
    float | None: st.none() | st.floats(-1e9, 1e9),
    Metrics: st.dictionaries(st.text(), st.none() | st.floats(-1e9, 1e9), max_size=3),
    dict[str, float]: st.dictionaries(st.text(), st.floats(-1e9, 1e9), max_size=3),
    dict[str, int]: st.dictionaries(st.text(), st.integers(0, 2**62), max_size=3),
    Transfer: st.builds(
        Transfer, st.integers(0, 2**62), st.integers(0, 99), seconds=st.floats(0, 9)
    ),
}


def events(kind: type) -> st.SearchStrategy[AnyEvent]:
    return st.builds(kind, **{f.name: values(f.type) for f in msgspec.structs.fields(kind)})


def values(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else VALUES[kind]


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_an_event_comes_back_as_it_was_from_one_line(kind, data):
    event = data.draw(events(kind))
    line = encode_event(event)
    assert b"\n" not in line
    assert decode_event(line) == event


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
    }
