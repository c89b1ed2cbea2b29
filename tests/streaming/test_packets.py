"""Packets are found on a stream, whatever lies between them and however the bytes arrive."""

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import DeadlineError, ProtocolError
from flstream.streaming import packets
from flstream.streaming.packets import PacketReader
from flstream.streaming.wire import FRAME, HEADER_BYTES, MAGIC, MESSAGE, Header, digest_of


class Pieces:
    """A channel on which bytes arrive in given pieces, with a moment of silence after each."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self.most = 0

    def receive_some(self, views: Sequence[memoryview]) -> int:
        count = 0
        for view in views:
            part = self._piece[: len(view)]
            view[: len(part)] = part
            self._piece = self._piece[len(part) :]
            count += len(part)
        self.most += count
        return count

    def wait(self) -> None:
        """Wait for the next piece."""
        if not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                raise DeadlineError("nothing comes any more")
            self._piece = piece


def packet(payload: bytes, kind: int = FRAME, number: int = 1) -> bytes:
    return (
        Header(kind, number, bytes(range(16)), 0, len(payload), digest_of([payload])).pack()
        + payload
    )


def cut(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """The data in pieces of these sizes, over and over."""
    done = turn = 0
    while done < len(data):
        size = sizes[turn % len(sizes)]
        yield data[done : done + size]
        done += size
        turn += 1


def read_all(channel: Pieces, reader: PacketReader) -> Iterator[bytes]:
    """The payloads, until nothing comes any more."""
    try:
        while True:
            header = reader.header(channel.wait)
            payload = bytearray(header.length)
            reader.payload([memoryview(payload)], channel.wait)
            yield bytes(payload)
    except DeadlineError:
        return


payloads = st.binary(max_size=200)
# Also what looks like the beginning of a packet, but not what happens to be a whole one.
junk = (
    st.lists(
        st.sampled_from([MAGIC, MAGIC[:1], MAGIC[:3], packet(b"")[:-1]]) | st.binary(max_size=90),
        max_size=4,
    )
    .map(b"".join)
    .filter(lambda data: packet(b"") not in data)
)
sizes = st.lists(st.integers(1, 300), min_size=1, max_size=5)


@given(st.lists(st.tuples(junk, payloads), max_size=6), junk, sizes)
@settings(max_examples=200)
def test_packets_between_junk_are_all_found(between, end, piece_sizes):
    # Junk that is cut off in what could be a header hides the packet after it from nobody.
    stream = b"".join(before + packet(payload) for before, payload in between) + end
    channel = Pieces(cut(stream, piece_sizes))
    reader = PacketReader(channel, "server")
    assert list(read_all(channel, reader)) == [payload for _, payload in between]
    between_them = sum(len(before) for before, _ in between)
    assert between_them <= reader.junk <= between_them + len(end)


@given(st.lists(st.tuples(payloads, st.integers(0, 40), st.booleans()), max_size=6), sizes)
def test_a_header_that_is_damaged_costs_its_own_packet_alone(given_packets, piece_sizes):
    stream = bytearray()
    sound = []
    for payload, place, damaged in given_packets:
        whole = bytearray(packet(payload))
        if damaged:
            whole[place] ^= 1
        else:
            sound.append(payload)
        stream += whole
    channel = Pieces(cut(bytes(stream), piece_sizes))
    assert list(read_all(channel, PacketReader(channel, "server"))) == sound


@given(st.lists(payloads, min_size=1, max_size=6), sizes, junk)
def test_payloads_are_passed_over_or_scattered_into_views(given_payloads, piece_sizes, before):
    stream = b"".join(before + packet(payload, MESSAGE) for payload in given_payloads)
    channel = Pieces(cut(stream, piece_sizes))
    reader = PacketReader(channel, "server")
    for turn, payload in enumerate(given_payloads):
        header = reader.header(channel.wait)
        assert (header.kind, header.length) == (MESSAGE, len(payload))
        if turn % 2:
            reader.skip(header.length, channel.wait)
            continue
        into = bytearray(len(payload))
        whole, middle = memoryview(into), len(payload) // 3
        reader.payload([whole[:middle], whole[middle:middle], whole[middle:]], channel.wait)
        assert into == payload


def test_no_more_is_read_than_the_packet_that_is_asked_for_and_the_next_header():
    # So that a payload goes from the kernel to where it belongs, and not by way of a buffer.
    channel = Pieces([packet(b"abc") * 3])
    reader = PacketReader(channel, "server")
    reader.header(channel.wait)
    assert channel.most == HEADER_BYTES
    reader.payload([memoryview(bytearray(3))], channel.wait)
    assert channel.most == HEADER_BYTES + 3 + HEADER_BYTES
    assert list(read_all(channel, reader)) == [b"abc", b"abc"]


def test_a_packet_whose_length_is_a_lie_is_passed_over_in_little_memory():
    stream = Header(FRAME, 1, bytes(16), 0, 5 << 20, 0).pack() + bytes(5 << 20) + packet(b"next")
    channel = Pieces([stream])
    reader = PacketReader(channel, "server")
    reader.skip(reader.header(channel.wait).length, channel.wait)
    assert list(read_all(channel, reader)) == [b"next"]


@pytest.mark.parametrize("junk", [bytes(64), MAGIC * 16, packet(b"")[:-1]])
def test_junk_without_end_is_an_error_and_is_not_kept(junk, monkeypatch):
    monkeypatch.setattr(packets, "_MOST_JUNK", 1 << 20)

    def endless() -> Iterator[bytes]:
        while True:
            yield junk * 1000

    channel = Pieces(endless())
    reader = PacketReader(channel, "server")
    with pytest.raises(ProtocolError, match=r"server sent \d+ bytes that are no packets"):
        reader.header(channel.wait)
    # It kept no more than it looks through at a time.
    assert channel.most - reader.junk <= 128 << 10


def test_a_little_junk_before_each_of_many_packets_is_no_junk_without_end(monkeypatch):
    monkeypatch.setattr(packets, "_MOST_JUNK", 1000)
    channel = Pieces([(bytes(500) + packet(b"here")) * 10])
    reader = PacketReader(channel, "server")
    assert list(read_all(channel, reader)) == [b"here"] * 10
    assert reader.junk == 5000
