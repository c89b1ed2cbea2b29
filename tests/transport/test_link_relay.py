"""Connections over an emulated link: real sockets, whose bytes are paced and come as sent."""

import os
import select
import socket
import threading
import time
from contextlib import closing

import pytest
from channels import tcp

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.job.link import NetworkLink
from flstream.transport.channel import Deadline
from flstream.transport.link_relay import LinkRelay, emulated_pipe

MIB = 1 << 20
QUICK = NetworkLink(up=1e9, down=1e9, latency=0.001, jitter=0.001, loss=0.01)
SLOW = NetworkLink(up=8e6, down=16e6, latency=0.05)


def receive(channel, count, seconds=20.0):
    into = bytearray(count)
    channel.receive([memoryview(into)], Deadline(seconds))
    return bytes(into)


def send(channel, data):
    """Send on a thread of its own, since the link holds the sender back."""
    thread = threading.Thread(target=channel.send, args=([memoryview(data)], Deadline(60)))
    thread.start()
    return thread


def relays():
    return [each for each in threading.enumerate() if each.name == "link-relay"]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = descriptors()
    yield
    assert relays() == []
    assert descriptors() == before


def test_bytes_come_as_sent_both_ways_at_once():
    down, up = os.urandom(8 * MIB), os.urandom(4 * MIB)
    with emulated_pipe("server", "site-1", QUICK) as (server, site):
        senders = [send(server, down), send(site, up)]
        assert receive(site, len(down)) == down
        assert receive(server, len(up)) == up
        for each in senders:
            each.join()


@pytest.mark.parametrize(("way", "least"), [("up", 1.0), ("down", 0.5)])
def test_a_mebibyte_takes_as_long_as_its_link_says(way, least):
    """At 8 Mbit/s a second and a little more; that it takes no longer is not asserted."""
    with emulated_pipe("server", "site-1", SLOW) as (server, site):
        source, sink = (site, server) if way == "up" else (server, site)
        began = time.monotonic()
        sender = send(source, bytes(MIB))
        receive(sink, MIB)
        sender.join()
        assert time.monotonic() - began >= least + 0.05


def test_connections_of_a_relay_share_the_rate_of_their_site():
    with closing(LinkRelay({"site-1": SLOW}, 0, "site-1")) as relay:
        pairs = [socket.socketpair() for _ in range(2)]
        sites = [relay.channel(theirs, "server", str(at)) for at, (_, theirs) in enumerate(pairs)]
        began = time.monotonic()
        senders = [send(each, bytes(MIB // 2)) for each in sites]
        for ours, _ in pairs:
            left = MIB // 2
            while left:
                left -= len(ours.recv(left))
        assert time.monotonic() - began >= 1.05
        for each in senders:
            each.join()
        for ours, _ in pairs:
            ours.close()
        for site in sites:
            site.close()


@pytest.mark.nightly
def test_what_is_sent_after_a_site_begins_goes_over_its_own_link():
    links = {"site-1": NetworkLink(latency=30.0), "site-2": NetworkLink()}
    ours, theirs = socket.socketpair()
    with (
        ours,
        closing(LinkRelay(links, 0, "site-2")) as relay,
        closing(relay.channel(theirs, "server", "up")) as site,
    ):
        site.send([memoryview(b"at once")], Deadline(5))
        assert ours.recv(7, socket.MSG_WAITALL) == b"at once"
        relay.use("site-1")
        relay.use("site-2")
        site.send([memoryview(b"again")], Deadline(5))
        assert ours.recv(5, socket.MSG_WAITALL) == b"again"
        relay.use("site-1")
        site.send([memoryview(b"later")], Deadline(5))
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        assert poll.poll(300) == []


def test_it_is_a_channel_over_tcp_too():
    with tcp() as (server, site), closing(LinkRelay({"a": QUICK}, 0, "a")) as relay:
        linked = relay.channel(site.detach(), "server", "up")
        data = os.urandom(3 * MIB)
        sender = send(server, data)
        assert receive(linked, len(data)) == data
        sender.join()
        server.close()
        with pytest.raises(ChannelClosedError, match="server closed the channel"):
            receive(linked, 1)
        linked.close()


@pytest.mark.parametrize("closes", ["server", "site"])
def test_what_was_sent_before_the_end_arrives_and_then_the_end_does(closes):
    with emulated_pipe("server", "site-1", SLOW) as ends:
        first, second = ends if closes == "server" else ends[::-1]
        first.send([memoryview(b"last words")], Deadline(1))
        first.close()
        assert receive(second, 10) == b"last words"
        with pytest.raises(ChannelClosedError):
            receive(second, 1, None)
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


def test_a_relay_closes_its_channels_also_where_the_peer_has_gone():
    ours, theirs = socket.socketpair()
    relay = LinkRelay({"a": NetworkLink()}, 0, "a")
    channel = relay.channel(theirs, "server", "down")
    ours.close()
    with pytest.raises(ChannelClosedError):
        receive(channel, 1)
    relay.close()
    assert channel.fileno() == -1


def test_a_relay_whose_peer_takes_nothing_holds_little_and_still_ends():
    ours, theirs = socket.socketpair()
    relay = LinkRelay({"a": NetworkLink()}, 0, "a")
    channel = relay.channel(theirs, "server", "up")
    with pytest.raises(DeadlineError):
        channel.send([memoryview(bytes(32 * MIB))], Deadline(0.5))
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
