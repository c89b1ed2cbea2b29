"""Memory that was lent is kept where it cannot be taken back; test_lent_memory.py has the rest."""

import socket

import numpy as np

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


def test_memory_whose_pages_cannot_be_replaced_is_never_used_again(monkeypatch):
    kept = []
    monkeypatch.setattr("flstream.transport.lending._kept", kept)

    def fails(start, stop):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("flstream.transport.lending.replace_pages", fails)
    ours, theirs = socket.socketpair()
    channel, loans = SocketChannel(ours, "peer", lends=True), Loans(ours.fileno())
    array = np.full(MIB, 1, np.uint8)
    view = view_of(array)
    start, stop = PrivateMemory.read().own_pages(view)
    pages, count = Pages([view[start:stop]]), 0
    with ours, theirs:
        while count < MIB // 2:
            sent = channel.lend_some(pages)
            assert sent
            with loans.lock:
                loans.sent(sent)
                loans.lent(b"token", Lending(pages.taken(), view))
            count += sent
        loans.take_back(b"token")
        address = address_of(view)
        del array, view, pages
        assert kept
        assert all(address <= address_of(each) < address + MIB for each in kept)
        assert theirs.recv(count, socket.MSG_WAITALL) == b"\1" * count
