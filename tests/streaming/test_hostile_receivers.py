"""Receivers that send nonsense: it is refused or passed over, and nobody else notices."""

import re

import pytest
from asking import MODEL, NBYTES, ask, assert_serves, offer, reply_to, waits_for
from harness import fetch, open_harness
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_tensors

from flstream.errors import ChannelClosedError
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MESSAGE,
    TOKEN_BYTES,
    Close,
    Closed,
    Fetch,
    Header,
    Open,
    Opened,
    Probe,
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
        packet(pack_message(Probe(bytes(16), 1), b"")[HEADER_BYTES:-1] + b"\xff"),
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
    channel.send([memoryview(message)], Deadline(10))
    with pytest.raises(ChannelClosedError):
        channel.receive([memoryview(bytearray(1))], Deadline(10))
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert "site-1" in outcome.reason
    assert_same_tensors(fetch(other, offer(harness, "site-2").token).tensors, MODEL)


JUNK = {
    "text": b"GET / HTTP/1.1\r\nHost: a-place-that-is-not-here\r\n\r\n",
    "frame": packet(b"", kind=FRAME),
    "frame of bytes": packet(bytes(5000), kind=FRAME),
    "huge": packet(b"", length=1 << 40),
    "digest": packet(b"x" * 99)[:-1] + b"y",
    "what begins as packets do": b"FLST" * 50_000,
    "a header but for its end": packet(b"")[:-1],
    "zeros": bytes(300_000),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_receiver_that_sends_junk_is_answered_as_soon_as_it_sends_requests(harness, junk):
    ref = offer(harness, "site-1")
    receiver = harness.receiver("site-1")
    for _ in range(3):
        receiver._channel.send([memoryview(junk)], Deadline(10))
        number = receiver.next_number()
        assert isinstance(ask(receiver, Open(ref.token, number)), Opened)
    receiver._channel.send([memoryview(junk)], Deadline(10))
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert ref.wait(30).ok


@pytest.mark.parametrize("junk", [bytes(1 << 20), b"no packet " * 100_000])
def test_a_receiver_that_sends_junk_without_end_loses_its_channel_and_nobody_else_does(
    harness, junk
):
    other = harness.receiver("site-2")
    ref = offer(harness, "site-1")
    channel = harness.channel("site-1")
    channel.send([memoryview(junk)] * 15, Deadline(10))
    assert ref.outcome is None
    with pytest.raises(ChannelClosedError):
        channel.send([memoryview(junk)] * 15, Deadline(10))
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert re.search(r"site-1 sent \d+ bytes that are no request", outcome.reason)
    assert_same_tensors(fetch(other, offer(harness, "site-2").token).tensors, MODEL)


def test_much_junk_is_borne_if_there_are_requests_in_it(harness):
    ref = offer(harness)
    receiver = harness.receiver()
    for _ in range(3):
        receiver._channel.send([memoryview(bytes(12 << 20))], Deadline(10))
        assert isinstance(ask(receiver, Open(ref.token, receiver.next_number())), Opened)
    assert ref.outcome is None


@given(st.integers(0, 8 * 300), st.integers(0, 3))
@settings(max_examples=40)
def test_a_request_with_a_flipped_bit_is_not_answered_and_the_next_ones_are(bit, which):
    with open_harness() as harness:
        ref = offer(harness)
        receiver = harness.receiver()
        number = receiver.next_number()
        damaged = bytearray(
            pack_message(
                (
                    Open(ref.token, number),
                    Fetch(ref.token, number, 0, NBYTES, 4096),
                    Probe(ref.token, number),
                    Close(ref.token, number, True, ""),
                )[which],
                ref.token,
            )
        )
        bit %= 8 * len(damaged)
        damaged[bit // 8] ^= 1 << bit % 8
        receiver._channel.send([memoryview(damaged)], Deadline(10))
        probe = Probe(ref.token, receiver.next_number())
        receiver.send(probe, 10)
        # The first answer is to the probe: nothing was said to the damaged request.
        header = receiver.packets.header(waits_for(receiver))
        assert header.request == probe.request
        assert ref.outcome is None
        assert ref.deliveries["site-1"].requests == 0


def test_a_request_that_was_cut_is_given_up_for_the_ones_that_follow(harness):
    ref = offer(harness)
    receiver = harness.receiver()
    whole = pack_message(Fetch(ref.token, receiver.next_number(), 0, NBYTES, 4096), ref.token)
    receiver._channel.send([memoryview(whole)[:-9]], Deadline(10))
    # It takes its end from the next one, so that is lost too; a receiver says it again.
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert ref.wait(30).ok


@given(st.binary(min_size=HEADER_BYTES, max_size=400))
@settings(max_examples=40)
def test_no_junk_stops_the_service(junk):
    with open_harness() as harness:
        harness.channel("site-1").send([memoryview(junk)], Deadline(10))
        assert_serves(harness)


def test_a_request_that_arrives_byte_by_byte_is_answered(harness):
    ref = offer(harness)
    receiver = harness.receiver()
    request = Open(ref.token, receiver.next_number())
    for byte in pack_message(request, ref.token):
        receiver._channel.send([memoryview(bytes([byte]))], Deadline(10))
    assert isinstance(reply_to(receiver, request.request), Opened)
