"""Memory that was lent is taken back: who reads late reads what was sent, and nothing else."""

import socket

import numpy as np
import pytest

from flstream.transport.lending import (
    Lending,
    Loans,
    PrivateMemory,
    address_of,
)
from flstream.transport.sockets import SocketChannel
from flstream.transport.splice import Pages

MIB = 1 << 20


def view_of(array):
    return memoryview(array).cast("B")


@pytest.fixture
def lent():
    """Half a MiB that was lent to a socket, whose peer has read nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, loans = SocketChannel(ours, "peer", lends=True), Loans(ours.fileno())
        array = np.full(MIB, 1, np.uint8)
        view = view_of(array)
        start, stop = PrivateMemory.read().own_pages(view)
        pages, count = Pages([view[start:stop]]), 0
        while count < MIB // 2:
            sent = channel.lend_some(pages)
            assert sent
            with loans.lock:
                loans.sent(sent)
                loans.lent(b"token", Lending(pages.taken(), view))
            count += sent
        yield loans, array, theirs, count


def received(sock, count):
    data = bytearray()
    while len(data) < count:
        data += sock.recv(count - len(data))
    return data


def test_a_peer_that_reads_late_has_the_bytes_that_were_lent(lent):
    loans, array, peer, count = lent
    loans.take_back(b"token")
    array[:] = 2
    assert received(peer, count) == b"\1" * count
    assert loans.has_ended(b"token")
    loans.forget([b"token"])
    assert loans.ended() == []


def test_memory_whose_pages_cannot_be_replaced_is_never_used_again(lent, monkeypatch):
    loans, array, peer, count = lent
    kept = []
    monkeypatch.setattr("flstream.transport.lending._kept", kept)

    def fails(start, stop):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("flstream.transport.lending.replace_pages", fails)
    loans.take_back(b"token")
    address = address_of(view_of(array))
    del array
    assert kept
    assert all(address <= address_of(each) < address + MIB for each in kept)
    assert received(peer, count) == b"\1" * count
