"""Packets come back as they were packed; what is damaged is known for it, and junk is no packet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packets import message

from flstream.errors import BrokenStreamError, ProtocolError
from flstream.streaming import wire
from flstream.transport.channel import Deadline, pipe

tokens = st.binary(min_size=wire.TOKEN_BYTES, max_size=wire.TOKEN_BYTES)
numbers = st.integers(0, 2**32 - 1)
offsets = st.integers(0, 2**63 - 1)
ranges = st.lists(st.tuples(offsets, offsets), min_size=1, max_size=5)
headers = st.builds(
    wire.Header,
    st.sampled_from([wire.MESSAGE, wire.FRAME, wire.ENCODED]),
    numbers,
    offsets,
    offsets,
)
requests = st.one_of(
    st.builds(wire.Open, tokens, numbers),
    st.builds(wire.Fetch, tokens, numbers, ranges, offsets, st.booleans()),
    st.builds(
        wire.Find, numbers, st.lists(st.tuples(st.text(), numbers, st.just(()), st.booleans()))
    ),
    st.builds(wire.Ping, tokens, numbers),
    st.builds(wire.Close, tokens, numbers, st.booleans(), st.text()),
)


@given(headers)
@settings(max_examples=10)
def test_a_header_with_any_one_bit_flipped_is_none(header):
    packed = bytearray(header.pack())
    for bit in range(8 * wire.HEADER_BYTES):
        packed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BrokenStreamError):
            wire.Header.parse(packed, "peer")
        packed[bit // 8] ^= 1 << bit % 8


@given(st.binary(max_size=200))
def test_junk_for_a_message_gives_only_protocol_errors(junk):
    for kinds in (wire.REQUESTS, wire.REPLIES):
        with pytest.raises(ProtocolError, match="peer"):
            wire.decode(kinds, junk, "peer")


@given(requests, st.integers(0, 1 << 16), st.binary(min_size=1, max_size=4))
def test_a_damaged_message_gives_a_request_or_a_protocol_error(request, place, damage):
    payload = bytearray(wire.pack_message(request)[wire.HEADER_BYTES : -wire.TRAILER_BYTES])
    place %= len(payload)
    payload[place : place + len(damage)] = damage
    try:
        read = wire.decode(wire.REQUESTS, payload, "peer")
    except ProtocolError:
        return
    wire.pack_message(wire.Refused(read.number, "no"))


class Interrupted(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("cut", range(0, wire.HEADER_BYTES, 7))
def test_a_reader_that_is_interrupted_in_a_header_goes_on_where_it_was(cut):
    ours, theirs = pipe("server", "site-1")
    packets = [message("Pong", number) for number in (1, 2)]
    reader = wire.PacketReader(theirs, "server")

    def interrupt():
        raise Interrupted

    ours.send([memoryview(packets[0][:cut])] if cut else [], Deadline(5))
    with pytest.raises(Interrupted):
        reader.header(interrupt)
    ours.send([memoryview(packets[0][cut:] + packets[1])], Deadline(5))
    for number in (1, 2):
        header = reader.header(interrupt)
        assert header.number == number
        reader.message(header, 1000, interrupt)
    ours.close()
    theirs.close()
