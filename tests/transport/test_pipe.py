"""Pipes: whole messages or a typed error, and every wait ends."""

import errno
import os
import select
import socket
import threading
from contextlib import closing
from multiprocessing import Pipe

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import AbortedError, ChannelClosedError, DeadlineError, FlstreamError
from flstream.transport.channel import Deadline, Signal
from flstream.transport.pipe import PipeChannel, pipe
from flstream.transport.splice import Pages


@pytest.fixture
def ends():
    server, site = pipe("server", "site-1")
    yield server, site
    server.close()
    site.close()


@pytest.fixture
def signal():
    signal = Signal()
    yield signal
    signal.close()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(1, 400))
@settings(max_examples=50)
def test_bytes_arrive_as_sent_however_either_side_cuts_them(parts, size):
    whole = b"".join(parts)
    server, site = pipe("server", "site-1")
    with closing(server), closing(site):
        server.send([memoryview(part) for part in parts], Deadline(5))
        into = bytearray(len(whole))
        views = [memoryview(into)[at : at + size] for at in range(0, len(whole), size)]
        site.receive(views, Deadline(5))
    assert into == whole


def test_a_message_larger_than_the_kernels_buffers_and_of_more_views_than_it_takes_arrives(ends):
    server, site = ends
    message = os.urandom(8 << 20)
    views = [memoryview(message)[start : start + 4096] for start in range(0, len(message), 4096)]
    assert len(views) > 1024
    sender = threading.Thread(target=server.send, args=(views, Deadline(10)))
    sender.start()
    into = [bytearray(1 << 12) for _ in range(2048)]
    site.receive([memoryview(buffer) for buffer in into], Deadline(10))
    sender.join()
    assert b"".join(into) == message


def test_both_ends_of_a_multiprocessing_pipe_are_pipes():
    left, right = Pipe()
    first = PipeChannel(socket.socket(fileno=os.dup(left.fileno())), "right")
    left.close()
    first.send([memoryview(b"hello")], Deadline(1))
    first.close()
    assert os.read(right.fileno(), 5) == b"hello"
    right.close()


def test_a_silent_peer_is_a_deadline_error_that_names_it(ends):
    _, site = ends
    with pytest.raises(DeadlineError, match="server did not answer"):
        site.receive([memoryview(bytearray(1))], Deadline(0.05))


def test_a_peer_that_sends_too_little_is_a_deadline_error(ends):
    server, site = ends
    server.send([memoryview(b"abc")], Deadline(1))
    with pytest.raises(DeadlineError):
        site.receive([memoryview(bytearray(4))], Deadline(0.05))


def test_a_peer_that_takes_nothing_is_a_deadline_error_that_names_it(ends):
    server, _ = ends
    with pytest.raises(DeadlineError, match="site-1 did not take"):
        server.send([memoryview(bytes(32 << 20))], Deadline(0.05))


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_deadline_that_is_over_still_takes_what_is_there(ends, seconds):
    server, site = ends
    server.send([memoryview(b"abcd")], Deadline(seconds))
    buffer = bytearray(4)
    site.receive([memoryview(buffer)], Deadline(seconds))
    assert buffer == b"abcd"


@given(st.floats(0.0, 0.02))
@settings(max_examples=10)
def test_a_deadline_takes_off_only_what_was_waited(seconds):
    read_end, write_end = os.pipe()
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    deadline = Deadline(seconds)
    assert deadline.wait(poll) == []
    assert deadline.left <= 0
    os.write(write_end, b"x")
    fresh = Deadline(3600)
    assert fresh.wait(poll)
    assert 0 < fresh.left <= 3600
    for end in (read_end, write_end):
        os.close(end)


def test_a_deadline_of_none_is_for_ever():
    read_end, write_end = os.pipe()
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    threading.Thread(target=os.write, args=(write_end, b"x")).start()
    deadline = Deadline(None)
    assert deadline.wait(poll)
    assert deadline.left is None
    os.close(read_end)
    os.close(write_end)


def test_a_closed_peer_is_an_error_that_names_it_both_ways(ends):
    server, site = ends
    server.close()
    with pytest.raises(ChannelClosedError, match="server closed the channel"):
        site.receive([memoryview(bytearray(1))], Deadline(None))
    with pytest.raises(ChannelClosedError, match="server closed the channel"):
        site.send([memoryview(b"x")], Deadline(None))


def test_what_was_sent_before_the_end_can_still_be_read(ends):
    server, site = ends
    server.send([memoryview(b"last words")], Deadline(1))
    server.close()
    buffer = bytearray(10)
    site.receive([memoryview(buffer)], Deadline(1))
    assert buffer == b"last words"
    with pytest.raises(ChannelClosedError):
        site.receive([memoryview(buffer)], Deadline(1))


def test_a_signal_wakes_a_receiver_that_waits(ends, signal):
    _, site = ends
    raised: list[FlstreamError] = []

    def wait() -> None:
        try:
            site.receive([memoryview(bytearray(1))], Deadline(None), abort=signal)
        except FlstreamError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    signal.set()
    waiter.join(10)
    assert not waiter.is_alive()
    assert isinstance(raised[0], AbortedError)


def test_a_signal_stays_up_until_it_is_taken_down(signal):
    assert not signal.is_set()
    signal.clear()
    signal.set()
    signal.set()
    assert signal.is_set()
    assert signal.is_set()
    signal.clear()
    assert not signal.is_set()


def test_a_signal_can_be_closed_twice(signal):
    signal.close()
    signal.close()


def test_sending_and_receiving_some_never_wait(ends):
    server, site = ends
    assert site.receive_some([memoryview(bytearray(10))]) == 0
    total = 0
    while count := server.send_some([memoryview(bytes(1 << 16))]):
        total += count
    assert total > 1 << 16
    buffer = bytearray(1 << 16)
    assert 0 < site.receive_some([memoryview(buffer)]) <= len(buffer)


@pytest.fixture(params=["pages", "copies"])
def sending(request, monkeypatch, ends):
    """A pair of ends, on a system that hands over pages and on one that does not."""
    if request.param == "copies":

        def refuse(*_args):
            raise OSError(errno.ENOSYS, "not here")

        monkeypatch.setattr(Pages, "splice_some", refuse)
        monkeypatch.setattr(os, "sendfile", refuse)
    return ends


def taken(channel, count):
    into = bytearray(count)
    channel.receive([memoryview(into)], Deadline(5))
    return bytes(into)


def test_lent_memory_and_files_arrive_as_they_are(sending, tmp_path):
    server, site = sending
    data = os.urandom(5 << 20)
    (tmp_path / "file").write_bytes(data)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    views = [memoryview(data)[at : at + 70_001] for at in range(0, len(data), 70_001)]
    sent = 0
    with open(fd, "rb"):
        pages = Pages(views)
        while pages.left:
            count = server.lend_some(pages)
            assert taken(site, count) == data[sent : sent + count]
            sent += count
        sent = 0
        while sent < len(data):
            count = server.send_file_some(fd, sent, len(data) - sent)
            assert taken(site, count) == data[sent : sent + count]
            sent += count


def test_a_full_pipe_takes_no_page_and_loses_none(sending, tmp_path):
    server, site = sending
    data = os.urandom(8 << 20)
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        sent = 0
        pages = Pages([memoryview(data)])
        while count := server.lend_some(pages):
            sent += count
        assert pages.left == len(data) - sent
        assert 0 < sent < len(data)
        assert server.send_file_some(file.fileno(), sent, 1 << 20) == 0
        assert taken(site, sent) == data[:sent]
        assert server.send_file_some(file.fileno(), sent, 16) == 16
        assert taken(site, 16) == data[sent : sent + 16]


def test_a_file_that_became_shorter_goes_on_as_zeros(sending, tmp_path):
    server, site = sending
    (tmp_path / "file").write_bytes(b"only this")
    with (tmp_path / "file").open("rb") as file:
        assert server.send_file_some(file.fileno(), 5, 100) == 4
        assert server.send_file_some(file.fileno(), 9, 96) == 96
    assert taken(site, 100) == b"this" + bytes(96)


def test_pages_for_a_peer_that_is_gone_are_an_error(sending, tmp_path):
    server, site = sending
    (tmp_path / "file").write_bytes(bytes(100))
    site.close()
    with (tmp_path / "file").open("rb") as file:
        with pytest.raises(ChannelClosedError, match="site-1"):
            server.lend_some(Pages([memoryview(bytes(100))]))
        with pytest.raises(ChannelClosedError, match="site-1"):
            server.send_file_some(file.fileno(), 0, 100)
