"""Connections over an emulated link, beside what every channel promises: how they end."""

import os
import select
import socket
import threading
from contextlib import closing

import pytest

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.job.link import NetworkLink
from flstream.transport import link_relay
from flstream.transport.channel import Deadline
from flstream.transport.link_relay import LinkRelay, emulated_pipe

MIB = 1 << 20


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = descriptors()
    yield
    assert "link-relay" not in [each.name for each in threading.enumerate()]
    assert descriptors() == before


@pytest.mark.parametrize("link", [NetworkLink(latency=30.0), NetworkLink(up=400.0)])
def test_what_is_sent_goes_over_the_link_of_the_site_that_has_begun(monkeypatch, link):
    monkeypatch.setattr(link_relay, "_DRAIN_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    with (
        ours,
        closing(LinkRelay({"site-1": link, "site-2": NetworkLink()}, 0, "site-2")) as relay,
        closing(relay.channel(theirs, "server", "up")) as site,
    ):
        for words in (b"at once", b"and now"):
            site.send([memoryview(words)], Deadline(5))
            assert ours.recv(7, socket.MSG_WAITALL) == words
            relay.use("site-1")
            relay.use("site-2")
        relay.use("site-1")
        site.send([memoryview(bytes(1500))], Deadline(5))
        assert poll.poll(100) == []


@pytest.mark.parametrize("closes", ["server", "site"])
def test_what_was_sent_before_the_end_arrives_and_then_the_end_does(closes):
    slow = NetworkLink(up=8e6, down=16e6, latency=0.05)
    with emulated_pipe("server", "site-1", slow) as ends:
        first, second = ends if closes == "server" else ends[::-1]
        first.send([memoryview(b"last words")], Deadline(1))
        first.close()
        into = bytearray(10)
        second.receive([memoryview(into)], Deadline(20))
        assert into == b"last words"
        with pytest.raises(ChannelClosedError):
            second.receive([memoryview(into)], Deadline(None))
        with pytest.raises(ChannelClosedError):
            second.send([memoryview(bytes(1 << 20))], Deadline(20))


def test_a_relay_delivers_what_was_sent_before_it_closes():
    ours, theirs = socket.socketpair()
    with ours:
        relay = LinkRelay({"a": NetworkLink(latency=0.2)}, 0, "a")
        relay.channel(theirs, "server", "up").send([memoryview(b"goodbye")], Deadline(1))
        relay.close()
        assert ours.recv(7, socket.MSG_WAITALL) == b"goodbye"
        assert ours.recv(1) == b""


def test_a_relay_closes_the_ends_of_connections_that_are_over_too():
    ours, theirs = socket.socketpair()
    relay = LinkRelay({"a": NetworkLink()}, 0, "a")
    channel = relay.channel(theirs, "server", "up")
    ours.close()
    with pytest.raises(ChannelClosedError):
        channel.receive([memoryview(bytearray(1))], Deadline(20))
    relay.close()
    assert channel.fileno() == -1


def test_a_relay_whose_peer_takes_nothing_holds_little_and_still_ends():
    ours, theirs = socket.socketpair()
    relay = LinkRelay({"a": NetworkLink()}, 0, "a")
    channel = relay.channel(theirs, "server", "up")
    with pytest.raises(DeadlineError):
        channel.send([memoryview(bytes(32 * MIB))], Deadline(0.1))
    ours.close()
    with pytest.raises(ChannelClosedError):
        channel.send([memoryview(bytes(32 * MIB))], Deadline(20))
    channel.close()
    relay.close()


def test_a_forked_child_keeps_no_end_open():
    ours, theirs = socket.socketpair()
    relay = LinkRelay({"a": NetworkLink()}, 0, "a")
    relay.channel(theirs, "server", "up")
    waits, ends = os.pipe()
    child = os.fork()
    if child == 0:
        relay.abandon()
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
    relay.close()
    with ours:
        assert ours.recv(1) == b""  # though the child lives
    os.close(ends)
    os.close(waits)
    assert os.waitpid(child, 0)[1] == 0
