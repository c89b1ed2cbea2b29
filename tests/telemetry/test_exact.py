"""The journal restores the result of an effect exactly."""

from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.telemetry.exact import decode_record, encode_record


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
def test_plain_results_are_records_too(value):
    kind = list[float] if isinstance(value, list) else type(value)
    assert decode_record(encode_record(value), kind) == value


def test_another_record_is_refused():
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        decode_record(b'{"place": "x"}', _Kept)
