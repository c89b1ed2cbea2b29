"""Receivers that send nonsense: it is refused or passed over, and nobody else notices."""

import pytest
from asking import Asker, ask, offer, reply_to

from flstream.errors import ChannelClosedError
from flstream.streaming.wire import (
    NOBODY,
    VERSION,
    Hello,
    Open,
    Opened,
    Ping,
    pack_message,
)


def test_a_request_that_arrives_byte_by_byte_is_answered(harness):
    ref = offer(harness)
    asker = Asker(harness.channel())
    for byte in pack_message(Open(ref.token, 1), ref.token):
        asker.send_bytes(bytes([byte]))
    assert isinstance(reply_to(asker, 1), Opened)


def test_a_beat_is_not_answered(harness):
    ref = offer(harness)
    asker = Asker(harness.channel())
    asker.send(Ping(NOBODY, 0), Ping(ref.token, 0), Ping(ref.token, 5))
    assert asker.header().token == NOBODY
    assert asker.header().request == 5


def test_an_instance_that_comes_back_supersedes_its_channel_and_another_one_coexists(harness):
    ref = offer(harness, "site-1")
    channels = [harness.channel() for _ in range(3)]
    hello = [pack_message(Hello(VERSION, instance)) for instance in (b"first", b"other", b"first")]
    askers = []
    for channel, greeting in zip(channels, hello, strict=True):
        asker = Asker(channel, greeting)
        assert isinstance(ask(asker, Open(ref.token, 1)), Opened)
        askers.append(asker)
    with pytest.raises(ChannelClosedError):
        ask(askers[0], Open(ref.token, 2))
    for asker in askers[1:]:
        assert isinstance(ask(asker, Open(ref.token, 2)), Opened)
    assert ref.outcome is None
