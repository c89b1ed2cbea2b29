"""Settings of downloads: what makes no sense is refused where it is written, by name."""

import pytest

from flstream.streaming.limits import Limits
from flstream.streaming.receiver import StreamSettings


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"chunk_size": 100}, "chunk_size is 100; give a multiple of 16"),
        ({"chunk_size": 1 << 31}, "up to 1073741824 bytes"),
        ({"chunk_size": 4096.0}, "whole numbers"),
        ({"request_size": 15}, "request_size is 15; a request covers 16 bytes at least"),
        ({"window": 0}, "window is 0; give 1 to 256 requests"),
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


def test_frames_have_whole_elements_whatever_a_request_covers():
    assert StreamSettings(chunk_size=4096, request_size=1000).frame_size == 992
    assert StreamSettings(chunk_size=4096, request_size=1000).bytes_a_request == 992
    assert StreamSettings(chunk_size=0).frame_size == 0


@pytest.mark.parametrize("value", [None, "x", 0, -1, 1.5, True])
def test_limits_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match=f"hashed_bytes is {value!r}; give a whole number from 1"):
        Limits(hashed_bytes=value)
