"""Memory that was lent is taken back: who reads late reads what was sent, and nothing else."""

import ctypes
import mmap
import socket
import tempfile

import numpy as np
import pytest

from flstream.transport.lending import (
    PAGE,
    Lending,
    Loans,
    PrivateMemory,
    address_of,
    replace_pages,
)
from flstream.transport.sockets import SocketChannel
from flstream.transport.splice import Pages

MIB = 1 << 20


def view_of(array):
    return memoryview(array).cast("B")


def test_own_pages_of_a_view_are_found():
    view = view_of(np.zeros(MIB, np.uint8))
    start, stop = PrivateMemory.read().own_pages(view)
    address = address_of(view)
    assert (address + start) % PAGE == (address + stop) % PAGE == 0
    assert 0 <= start < PAGE
    assert MIB - PAGE < stop <= MIB


def test_a_part_of_a_view_may_end_within_a_page_that_is_all_of_the_same_array():
    view = view_of(np.zeros(MIB, np.uint8))
    start, stop = PrivateMemory.read().own_pages(view)
    memory = PrivateMemory.read()
    assert memory.own_pages(view[start + 5 : stop - 5]) == (0, stop - start - 10)
    assert memory.own_pages(view[: start + 5]) == ((start, start + 5) if start + 5 else (0, 0))
    assert memory.own_pages(view[stop - 5 :])[1] == 5
    if start:
        assert memory.own_pages(view[:start]) == (0, 0)


def test_less_than_a_page_is_none():
    assert PrivateMemory.read().own_pages(view_of(np.zeros(PAGE - 1, np.uint8))) == (0, 0)


def test_shared_and_file_mapped_and_read_only_memory_is_none():
    shared = mmap.mmap(-1, 4 * PAGE)
    with tempfile.TemporaryFile() as file:
        file.truncate(4 * PAGE)
        mapped = mmap.mmap(file.fileno(), 4 * PAGE, flags=mmap.MAP_PRIVATE)
        constant = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        memory = PrivateMemory.read()
        for each in (shared, mapped, constant):
            assert memory.own_pages(memoryview(each)) == (0, 0)
        private = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE)
        assert PrivateMemory.read().own_pages(memoryview(private)) == (0, 4 * PAGE)


def test_other_pages_of_the_same_content_take_the_place_of_the_old_ones():
    numbers = np.random.default_rng(1).integers(0, 256, MIB, dtype=np.uint8)
    array = numbers.copy()
    start = address_of(view_of(array))
    first = -(-start // PAGE) * PAGE
    replace_pages(first, first + 64 * PAGE)
    assert np.array_equal(array, numbers)
    array[:] = 7
    assert array.sum() == 7 * MIB
    assert ctypes.string_at(first, 3) == b"\7\7\7"


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


def test_what_was_lent_for_another_ref_stays_lent(lent):
    loans, array, peer, count = lent
    loans.take_back(b"other")
    array[:] = 2
    assert received(peer, count) == b"\2" * count


def test_of_what_was_read_nothing_is_taken_back(lent, monkeypatch):
    loans, _, peer, count = lent
    received(peer, count)
    replaced = []
    monkeypatch.setattr(
        "flstream.transport.lending.replace_pages", lambda *each: replaced.append(each)
    )
    loans.take_back()
    assert replaced == []


def test_a_socket_that_is_closed_has_its_pages_replaced_first(lent):
    loans, array, peer, count = lent
    loans.take_back()
    array[:] = 2
    assert set(received(peer, count)) == {1}


def mappings():
    with open("/proc/self/maps", "rb") as file:
        return file.read().count(b"\n")


def lend_everywhere(array):
    """Lends a page of each 64 KiB of an array, and takes all of them back."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loans, start = Loans(ours.fileno()), address_of(view_of(array))
        first = -(-start // PAGE) * PAGE
        loans.sent(1 << 40)  # far more than anybody reads
        for place in range(first, start + array.nbytes - PAGE, 64 << 10):
            with loans.lock:
                loans.lent(b"token", Lending([(place, place + PAGE)], view_of(array)))
        loans.sent(-(1 << 40) + 1)
        loans._read = lambda: 0
        loans.take_back(b"token")


def test_memory_does_not_fall_into_as_many_mappings_as_there_were_loans():
    array = np.full(64 * MIB, 3, np.uint8)
    before = mappings()
    for _ in range(3):
        lend_everywhere(array)
    assert mappings() - before < 64
    assert array.min() == array.max() == 3


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
