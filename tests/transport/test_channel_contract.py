"""What every channel promises: whole messages or a typed error that names the peer, in time."""

import os
import threading

import pytest
from channels import CHANNELS
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import AbortedError, ChannelClosedError, DeadlineError, FlstreamError
from flstream.transport.channel import Deadline, Signal, pipe

every_channel = pytest.mark.parametrize("connect", CHANNELS.values(), ids=CHANNELS)


@pytest.fixture(params=CHANNELS.values(), ids=CHANNELS)
def ends(request):
    with request.param() as ends:
        yield ends


@pytest.fixture
def signal():
    signal = Signal()
    yield signal
    signal.close()


def receive(channel, count, seconds=5.0, abort=None):
    """The next bytes of a channel."""
    into = bytearray(count)
    channel.receive([memoryview(into)], Deadline(seconds), abort=abort)
    return bytes(into)


def repeatedly(send):
    """Over TCP, the first bytes to a peer that is gone are taken, and answered by its kernel."""
    for _ in range(100):
        send()


@every_channel
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(1, 400))
@settings(max_examples=50)
def test_bytes_arrive_as_sent_however_either_side_cuts_them(connect, parts, size):
    whole = b"".join(parts)
    with connect() as (server, site):
        server.send([memoryview(part) for part in parts], Deadline(5))
        into = bytearray(len(whole))
        views = [memoryview(into)[at : at + size] for at in range(0, len(whole), size)]
        site.receive(views, Deadline(5))
    assert into == whole


def test_both_ends_send_and_receive(ends):
    server, site = ends
    server.send([memoryview(b"a question")], Deadline(5))
    assert receive(site, 10) == b"a question"
    site.send([memoryview(b"an answer")], Deadline(5))
    assert receive(server, 9) == b"an answer"


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


@pytest.mark.parametrize("said", [b"", b"abc"])
def test_a_peer_that_sends_too_little_is_a_deadline_error_that_names_it(ends, said):
    server, site = ends
    server.send([memoryview(said)], Deadline(1))
    with pytest.raises(DeadlineError, match="server did not answer"):
        receive(site, 4, 0.05)


def test_a_peer_that_takes_nothing_is_a_deadline_error_that_names_it(ends):
    server, _ = ends
    with pytest.raises(DeadlineError, match="site-1 did not take"):
        server.send([memoryview(bytes(32 << 20))], Deadline(0.05))


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_deadline_that_is_over_still_takes_what_is_there(ends, seconds):
    server, site = ends
    server.send([memoryview(b"abcd")], Deadline(seconds))
    assert site.wait(Deadline(5))
    assert receive(site, 4, seconds) == b"abcd"


def test_a_closed_peer_is_an_error_that_names_it_both_ways(ends):
    server, site = ends
    server.close()
    with pytest.raises(ChannelClosedError, match="server closed the channel"):
        receive(site, 1, None)
    with pytest.raises(ChannelClosedError, match="server closed the channel"):
        repeatedly(lambda: site.send([memoryview(b"x")], Deadline(None)))


def test_what_was_sent_before_the_end_can_still_be_read(ends):
    server, site = ends
    server.send([memoryview(b"last words")], Deadline(1))
    server.close()
    assert receive(site, 10) == b"last words"
    with pytest.raises(ChannelClosedError):
        receive(site, 10)


@pytest.mark.parametrize("call", ["receive", "wait"])
def test_a_signal_wakes_whoever_waits_for_the_peer(ends, signal, call):
    _, site = ends
    raised: list[FlstreamError] = []

    def wait() -> None:
        try:
            if call == "receive":
                receive(site, 1, None, signal)
            else:
                site.wait(Deadline(3600), signal)
        except FlstreamError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    signal.set()
    waiter.join(10)
    assert not waiter.is_alive()
    assert isinstance(raised[0], AbortedError)


def test_waiting_says_whether_there_is_something_to_receive(ends):
    server, site = ends
    assert site.wait(Deadline(0.01)) is False
    server.send([memoryview(b"x")], Deadline(1))
    assert site.wait(Deadline(5)) is True
    assert receive(site, 1) == b"x"
    server.close()
    assert site.wait(Deadline(5)) is True  # the end is something, too


def test_sending_and_receiving_some_never_wait(ends):
    server, site = ends
    assert site.receive_some([memoryview(bytearray(10))]) == 0
    total = 0
    while count := server.send_some([memoryview(bytes(1 << 16))]):
        total += count
    assert total > 1 << 16
    assert site.wait(Deadline(5))
    buffer = bytearray(1 << 16)
    assert 0 < site.receive_some([memoryview(buffer)]) <= len(buffer)


@pytest.fixture
def direct_ends():
    server, site = pipe("server", "site-1", direct=True)
    yield server, site
    server.close()
    site.close()


def test_a_file_is_handed_over_with_a_message(direct_ends, tmp_path):
    server, site = direct_ends
    (tmp_path / "file").write_bytes(b"content")
    with (tmp_path / "file").open("rb") as file:
        server.send([memoryview(b"here")], Deadline(5), [file.fileno()])
    assert receive(site, 4) == b"here"
    fd = site.take_descriptor()
    assert os.pread(fd, 100, 0) == b"content"
    assert not os.get_inheritable(fd)
    os.close(fd)
    with pytest.raises(ChannelClosedError, match="server handed no descriptor over"):
        site.take_descriptor()


def test_files_that_nobody_takes_are_closed(direct_ends):
    server, site = direct_ends
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        server.send([memoryview(b"x")], Deadline(5), [server.fileno()])
        receive(site, 1)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    site.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_process_says_who_it_is(direct_ends):
    server, site = direct_ends
    server.send([memoryview(b"x")], Deadline(5))
    receive(site, 1)
    assert site.peer_pid == os.getpid()
    ordinary, other = pipe("server", "site-1")
    other.send([memoryview(b"x")], Deadline(5))
    receive(ordinary, 1)
    assert ordinary.peer_pid is None
    ordinary.close()
    other.close()
