"""Receivers that send nonsense: it is refused or passed over, and nobody else notices."""

import re
from contextlib import suppress

import pytest
from asking import MODEL, NBYTES, Asker, ask, assert_serves, offer, reply_to
from harness import fetch, open_harness
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_tensors

from flstream.errors import ChannelClosedError
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MESSAGE,
    NOBODY,
    TOKEN_BYTES,
    VERSION,
    Close,
    Closed,
    Fetch,
    Header,
    Hello,
    Open,
    Opened,
    Ping,
    digest_of,
    pack_message,
)
from flstream.transport.channel import Deadline


def packet(payload: bytes, kind: int = MESSAGE, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    header = Header(kind, 1, bytes(TOKEN_BYTES), 0, size, digest_of([payload]))
    return header.pack() + payload


@pytest.mark.parametrize(
    "message",
    [
        packet(b"not msgpack at all"),
        packet(pack_message(Open(bytes(16), 1), bytes(16))),
        packet(b"\x81\xa1z" + b"\x91" * 60_000 + b"\x00"),
        packet(
            pack_message(Close(bytes(16), 1, False, "WORD"), b"")[HEADER_BYTES:].replace(
                b"WORD", b"\xff" * 4
            )
        ),
        packet(pack_message(Ping(bytes(16), 1), b"")[HEADER_BYTES:-1] + b"\xff"),
        pack_message(Closed(1), bytes(16)),
    ],
    ids=["payload", "twice", "deep", "no text", "negative", "reply"],
)
def test_a_receiver_whose_sound_packets_are_no_requests_loses_its_channel_and_nobody_else_does(
    harness, message
):
    other = harness.receiver("site-2")
    ref = offer(harness, "site-1")
    channel = harness.channel("site-1")
    asker = Asker(channel)
    asker.send_bytes(message)
    asker.header()  # the greeting
    with pytest.raises(ChannelClosedError):
        asker.header()
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert "site-1" in outcome.reason
    assert_same_tensors(fetch(other, offer(harness, "site-2").token).tensors, MODEL)


PACKED = packet(b"")
JUNK = {
    "text": b"GET / HTTP/1.1\r\nHost: a-place-that-is-not-here\r\n\r\n".ljust(64),
    "frame": packet(b"", kind=FRAME),
    "frame of bytes": packet(bytes(5000), kind=FRAME),
    "huge": packet(b"", length=1 << 40),
    "digest": packet(b"x" * 99)[:-1] + b"y",
    "what begins as packets do": b"FLST" * 50_000,
    "a header but for its end": packet(b"")[:-1] + b"x",
    "zeros": bytes(300_000),
    "another version": PACKED[:4] + b"\x01" + PACKED[5:],
}


@pytest.mark.parametrize("first", [False, True], ids=["after a greeting", "at once"])
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_receiver_that_sends_junk_loses_its_channel_and_nobody_else_does(harness, junk, first):
    other = harness.receiver("site-2")
    ref = offer(harness, "site-1")
    channel = harness.channel("site-1")
    if not first:
        assert isinstance(ask(Asker(channel), Open(ref.token, 1)), Opened)
    with suppress(ChannelClosedError):  # it may be closed before all of it is there
        channel.send([memoryview(junk)], Deadline(10))
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert re.search(r"site-1: .*(no packet|no request|not match|did not greet)", outcome.reason)
    assert_same_tensors(fetch(other, offer(harness, "site-2").token).tensors, MODEL)
    # It may come back on another channel.
    assert_same_tensors(
        fetch(harness.receiver("site-1"), offer(harness, "site-1").token).tensors, MODEL
    )


@pytest.mark.parametrize("kind", [Open, Ping], ids=lambda kind: kind.__name__)
def test_a_receiver_that_does_not_greet_is_told_nothing(harness, kind):
    ref = offer(harness)
    channel = harness.channel()
    channel.send([memoryview(pack_message(kind(ref.token, 1), ref.token))], Deadline(10))
    assert "site-1 did not greet" in ref.wait(30).reason


def test_a_receiver_of_another_version_is_named_with_it(harness):
    ref = offer(harness)
    harness.channel().send([memoryview(pack_message(Hello(99, b"x")))], Deadline(10))
    assert "site-1 speaks version 99 of the streaming protocol" in ref.wait(30).reason


@given(st.integers(0, 8 * 300), st.integers(0, 3))
@settings(max_examples=40)
def test_a_request_with_a_flipped_bit_is_not_answered_and_ends_the_channel(bit, which):
    with open_harness() as harness:
        ref = offer(harness)
        asker = Asker(harness.channel())
        damaged = bytearray(
            pack_message(
                (
                    Open(ref.token, 1),
                    Fetch(ref.token, 1, 0, NBYTES, 4096),
                    Ping(ref.token, 1),
                    Close(ref.token, 1, True, ""),
                )[which],
                ref.token,
            )
        )
        bit %= 8 * len(damaged)
        damaged[bit // 8] ^= 1 << bit % 8
        asker.send_bytes(damaged)
        assert ref.wait(30).status == "aborted"
        assert ref.deliveries["site-1"].requests == 0
        # There is a greeting, and then the end.
        assert asker.header().token == NOBODY
        with pytest.raises(ChannelClosedError):
            asker.header()


@given(st.binary(min_size=HEADER_BYTES, max_size=400))
@settings(max_examples=40)
def test_no_junk_stops_the_service(junk):
    with open_harness() as harness:
        harness.channel("site-1").send([memoryview(junk)], Deadline(10))
        assert_serves(harness)


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
