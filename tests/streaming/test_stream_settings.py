"""Settings of downloads: what makes no sense is refused where it is written, by name."""

import pytest

from flstream.streaming.settings import Limits, StreamSettings


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"chunk_size": 100}, "chunk_size is 100; give a multiple of 16"),
        ({"chunk_size": 1 << 31}, "up to 1073741824 bytes"),
        ({"chunk_size": 4096.0}, "chunk_size is 4096.0; give a multiple of 16"),
        ({"request_timeout": 0}, "request_timeout is 0; give seconds above 0"),
        ({"request_timeout": float("nan")}, "request_timeout is nan"),
        ({"ping_after": -1.0}, "ping_after is -1.0"),
        ({"request_timeout": "5"}, "request_timeout is '5'; give seconds above 0"),
        ({"request_timeout": 10**400}, "give seconds above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        StreamSettings(**fields)


@pytest.mark.parametrize("value", [None, "x", 0, -1, 1.5, True])
def test_limits_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match=f"scratch_bytes is {value!r}; give a whole number from 1"):
        Limits(scratch_bytes=value)
