"""Packets are read from a stream however its bytes arrive; what is none ends the reading."""

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import BrokenStreamError, DeadlineError
from flstream.streaming.incoming import PacketReader
from flstream.streaming.wire import FRAME, Header, digest_of


class Pieces:
    """A channel on which bytes arrive in given pieces, with a moment of silence after each."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""

    def receive_some(self, views: Sequence[memoryview]) -> int:
        count = 0
        for view in views:
            part = self._piece[: len(view)]
            view[: len(part)] = part
            self._piece = self._piece[len(part) :]
            count += len(part)
        return count

    def wait(self) -> None:
        """Wait for the next piece."""
        if not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                raise DeadlineError("nothing comes any more")
            self._piece = piece

    def check(self) -> None:
        """Nothing calls it off."""


def packet(payload: bytes) -> bytes:
    digest = digest_of([payload])
    return Header(FRAME, 1, bytes(range(16)), 0, len(payload), digest).pack() + payload


def cut(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """The data in pieces of these sizes, over and over."""
    done = turn = 0
    while done < len(data):
        size = sizes[turn % len(sizes)]
        yield data[done : done + size]
        done += size
        turn += 1


payloads = st.lists(st.binary(max_size=200), max_size=6)
sizes = st.lists(st.integers(1, 300), min_size=1, max_size=5)


@given(payloads, sizes, st.integers(1, 50))
@settings(max_examples=200)
def test_packets_are_read_whole_however_they_arrive_and_into_whatever_views(
    sent, piece_sizes, view_size
):
    channel = Pieces(cut(b"".join(map(packet, sent)), piece_sizes))
    reader = PacketReader(channel, "server")
    for payload in sent:
        header = reader.header(channel)
        into = bytearray(header.length)
        views = [memoryview(into)[at : at + view_size] for at in range(0, len(into), view_size)]
        assert reader.payload(views, channel) == header.digest == digest_of([into])
        assert into == payload
    with pytest.raises(DeadlineError):
        reader.header(channel)


@given(payloads, sizes, st.data())
def test_what_is_left_of_a_payload_is_skipped(sent, piece_sizes, data):
    channel = Pieces(cut(b"".join(map(packet, sent)), piece_sizes))
    reader = PacketReader(channel, "server")
    for payload in sent:
        header = reader.header(channel)
        part = bytearray(data.draw(st.integers(0, header.length)))
        reader.payload([memoryview(part)], channel)
        assert part == payload[: len(part)]
        assert reader.left == header.length - len(part)


def test_a_reader_that_was_interrupted_in_a_payload_goes_on_with_the_next_packet():
    first, second = bytes(1000), b"next"
    channel = Pieces([packet(first)[:500]])
    reader = PacketReader(channel, "server")
    header = reader.header(channel)
    with pytest.raises(DeadlineError):
        reader.payload([memoryview(bytearray(header.length))], channel)
    channel._pieces = iter([packet(first)[500:] + packet(second)])
    assert reader.header(channel).digest == digest_of([second])


@given(payloads, st.integers(0, 63), st.integers(0, 7), sizes)
def test_what_is_no_packet_is_an_error_that_names_the_peer(sent, place, bit, piece_sizes):
    broken = bytearray(packet(b"last"))
    broken[place] ^= 1 << bit
    channel = Pieces(cut(b"".join(map(packet, sent)) + bytes(broken), piece_sizes))
    reader = PacketReader(channel, "server")
    for _ in sent:
        reader.header(channel)
    with pytest.raises(BrokenStreamError, match="server sent bytes that are no packet"):
        reader.header(channel)
