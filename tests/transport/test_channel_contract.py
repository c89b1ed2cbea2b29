"""What every channel promises: whole messages or a typed error that names the peer, in time.

And what its deadlines and signals do.
"""

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from queue import Queue

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import open_files

from flstream.errors import AbortedError, ChannelClosedError, DeadlineError, ProtocolError
from flstream.job.network_section import NetworkLink
from flstream.transport.channel import Channel, Deadline, Signal, pipe
from flstream.transport.link import LinkRelay
from flstream.transport.messages import MessageChannel
from flstream.transport.tcp import UNIX, TcpListener, dial

Ends = tuple[Channel, Channel]


@contextmanager
def pipes(*, direct: bool = False) -> Iterator[Ends]:
    """Two ends of a pipe: the server's, whose peer is site-1, and the site's."""
    server, site = pipe("server", "site-1", direct=direct)
    with closing(server), closing(site):
        yield server, site


@contextmanager
def tcp(address: str = "127.0.0.1:0") -> Iterator[Ends]:
    """The ends of an authenticated connection, once each has the other's proof."""
    accepted: Queue[Channel] = Queue()
    with TcpListener(address, lambda channel, _: accepted.put(channel)) as listener:
        site = dial(listener.address, listener.admit("site-1"), "server")
        server = accepted.get(timeout=10)
    with closing(server), closing(site):
        yield server, site


@contextmanager
def linked() -> Iterator[Ends]:
    """A TCP connection over an emulated link, which is fast and loses packets."""
    link = NetworkLink(up=1e9, down=1e9, latency=0.001, jitter=0.001, loss=0.01)
    with (
        tcp() as (server, site),
        closing(LinkRelay({"site-1": link}, 0, "site-1")) as relay,
        closing(relay.channel(site.detach(), "server", "up")) as near,
    ):
        yield server, near


# A new channel is a function and an entry here.
CHANNELS: dict[str, Callable[[], AbstractContextManager[Ends]]] = {
    "pipe": pipes,
    "tcp": tcp,
    "unix": partial(tcp, UNIX),
    "link": linked,
}
every_channel = pytest.mark.parametrize("connect", CHANNELS.values(), ids=CHANNELS)


@pytest.fixture(params=CHANNELS.values(), ids=CHANNELS)
def ends(request):
    with request.param() as ends:
        yield ends


@pytest.fixture
def direct_ends():
    with pipes(direct=True) as ends:
        yield ends


@pytest.fixture
def signal():
    with closing(Signal()) as signal:
        yield signal


def receive(channel, count, seconds=5.0, abort=None):
    into = bytearray(count)
    channel.receive([memoryview(into)], Deadline(seconds), abort=abort)
    return bytes(into)


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
def test_a_peer_that_sends_or_takes_too_little_is_a_deadline_error_that_names_it(ends, said):
    server, site = ends
    server.send([memoryview(said)], Deadline(1))
    with pytest.raises(DeadlineError, match="server did not answer"):
        receive(site, 4, 0.05)
    with pytest.raises(DeadlineError, match="site-1 did not take"):
        server.send([memoryview(bytes(32 << 20))], Deadline(0.05))


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_deadline_that_is_over_still_takes_what_is_there(ends, seconds):
    server, site = ends
    server.send([memoryview(b"abcd")], Deadline(seconds))
    assert site.wait(Deadline(5))
    assert receive(site, 4, seconds) == b"abcd"


@pytest.mark.parametrize(("first", "name"), [(0, "server"), (1, "site-1")])
def test_what_was_sent_before_the_end_is_read_and_the_end_is_an_error_both_ways(ends, first, name):
    closes, reads = ends[first], ends[1 - first]
    closes.send([memoryview(b"last words")], Deadline(1))
    closes.close()
    assert receive(reads, 10) == b"last words"
    assert reads.wait(Deadline(5)) is True  # the end is something, too
    with pytest.raises(ChannelClosedError, match=f"{name} closed the channel"):
        receive(reads, 1, None)
    with pytest.raises(ChannelClosedError, match=f"{name} closed the channel"):
        # Over TCP, the first bytes to a peer that is gone are taken, and answered by its kernel.
        [reads.send([memoryview(b"x")], Deadline(None)) for _ in range(100)]


@pytest.mark.parametrize("call", ["receive", "wait"])
def test_a_signal_wakes_whoever_waits_for_the_peer(ends, signal, call):
    _, site = ends
    calls = {
        "receive": lambda: receive(site, 1, 20, signal),
        "wait": lambda: site.wait(Deadline(20), signal),
    }
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(calls[call])
        signal.set()
        with pytest.raises(AbortedError):
            waiter.result(10)


def test_sending_and_receiving_some_never_wait_and_waiting_says_whether_there_is_something(ends):
    server, site = ends
    assert site.wait(Deadline(0.01)) is False
    assert site.receive_some([memoryview(bytearray(10))]) == 0
    server.send([memoryview(b"x")], Deadline(1))
    assert site.wait(Deadline(5)) is True
    assert receive(site, 1) == b"x"
    total = 0
    while count := server.send_some([memoryview(bytes(1 << 16))]):
        total += count
    assert total > 1 << 16
    assert site.wait(Deadline(5))
    buffer = bytearray(1 << 16)
    assert 0 < site.receive_some([memoryview(buffer)]) <= len(buffer)


def test_a_file_is_handed_over_with_a_message_and_closed_if_nobody_takes_it(direct_ends, tmp_path):
    server, site = direct_ends
    (tmp_path / "file").write_bytes(b"content")
    with (tmp_path / "file").open("rb") as file:
        server.send_some([memoryview(b"here")], [file.fileno()])
    assert receive(site, 4) == b"here"
    fd = site.take_descriptor()
    assert os.pread(fd, 100, 0) == b"content"
    assert not os.get_inheritable(fd)
    os.close(fd)
    with pytest.raises(ChannelClosedError, match="server handed no descriptor over"):
        site.take_descriptor()
    server, site = direct_ends
    before = open_files()
    for _ in range(20):
        server.send_some([memoryview(b"x")], [server.fileno()])
        receive(site, 1)
    assert open_files() <= before + 1
    site.close()
    assert open_files() == before - 1


def test_a_process_says_who_it_is(direct_ends):
    server, site = direct_ends
    server.send([memoryview(b"x")], Deadline(5))
    receive(site, 1)
    assert site.peer_pid == os.getpid()
    with pipes() as (server, site):
        server.send([memoryview(b"x")], Deadline(5))
        receive(site, 1)
        assert site.peer_pid is None


def test_a_deadline_takes_off_only_what_was_waited():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        over = Deadline(0.01)
        assert not over.poll(poll)
        assert over.left <= 0
        theirs.send(b"x")
        for seconds in (3600, None):
            deadline = Deadline(seconds)
            assert deadline.poll(poll)
            assert deadline.left is None if seconds is None else 0 < deadline.left <= 3600
    assert not Deadline(3600).poll(select.poll(), most=0.01)


def test_a_signal_stays_up_until_it_is_taken_down_and_threads_may_ask_for_it(signal):
    assert not signal.is_set()
    signal.clear()
    signal.set()
    signal.set()
    assert signal.is_set()
    assert signal.is_set()
    signal.clear()
    assert not signal.is_set()
    with ThreadPoolExecutor(4) as executor:
        asked = executor.map(lambda _: [signal.is_set() for _ in range(2_000)], range(4))
        assert not any(map(any, asked))


# Small messages come back as they were; anything else is a typed error that names the peer.
class Greeting(msgspec.Struct, tag=True, frozen=True):
    text: str
    numbers: dict[str, float]


class Farewell(msgspec.Struct, tag=True, frozen=True):
    pass


@given(st.lists(st.builds(Greeting, st.text(), st.dictionaries(st.text(), st.floats(0, 1)))))
def test_messages_arrive_whole_and_in_order_and_are_input_until_then(messages):
    ours, theirs = socket.socketpair()
    sender = MessageChannel(ours, "site-1", Farewell)
    receiver = MessageChannel(theirs, "server", Greeting | Farewell)
    with closing(sender), closing(receiver):
        for message in messages:
            sender.send(message)
        sender.send(*(together := [Greeting("x" * 100_000, {}), Greeting("last", {}), Farewell()]))
        for message in (*messages, *together):
            assert receiver.has_input()
            assert receiver.receive(1) == message
        assert not receiver.has_input()


def framed(payload):
    return len(payload).to_bytes(4, "little") + payload


WORD = framed(msgspec.msgpack.encode({"type": "Greeting", "text": "WORD", "numbers": {}}))


@pytest.mark.parametrize(
    ("error", "sentence", "data"),
    [
        (ProtocolError, "sent an unreadable message", WORD.replace(b"WORD", b"\xff\xfe\xfd\xfc")),
        (ProtocolError, "unreadable", framed(b"\x81\xa1z" + b"\x91" * 100_000 + b"\x00")),
        (ProtocolError, "unreadable", framed(msgspec.msgpack.encode({"type": "Stranger"}))),
        (ProtocolError, "unreadable", framed(b"")),
        # Before it is read.
        (ProtocolError, "sent a message of 2147483647 bytes", b"\xff\xff\xff\x7f"),
        (DeadlineError, "did not answer", b""),
        (ChannelClosedError, "closed the channel", None),
    ],
    ids=[
        *("text that is not UTF-8", "arrays without end", "an unknown type", "nothing", "too much"),
        *("silence", "the end"),
    ],
)
def test_what_is_no_message_is_an_error_that_names_the_peer(error, sentence, data):
    ours, theirs = socket.socketpair()
    with ours, closing(MessageChannel(theirs, "server", Greeting | Farewell)) as channel:
        if data is None:
            ours.shutdown(socket.SHUT_WR)
        else:
            ours.sendall(data)
        with pytest.raises(error, match=f"server.* {sentence}"):
            channel.receive(0.02 if data == b"" else 1)
