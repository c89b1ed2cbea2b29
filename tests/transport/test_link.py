"""Emulated links: when bytes arrive, by a clock of the test's own, and how connections end."""

import os
import select
import socket
import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import open_files

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.job.network_section import NetworkLink, TracePoint
from flstream.transport import link as links
from flstream.transport.channel import Deadline
from flstream.transport.link import PACKET_BYTES, PIECE_PACKETS, Flow, Line, LinkRelay

MIB = 1 << 20
MBIT = 1e6


def line(site="site-1", way="up", **link):
    return Line(NetworkLink(**link), site, way, began=100.0)


def emulated(seed=3, **link):
    return Flow("up", seed, line(**link))


def send(flow, nbytes, now=100.0, cut=1 << 30):
    """Send bytes in pieces of at most ``cut``; return when each byte's piece arrives."""
    arrivals = []
    while nbytes:
        count = min(flow.most_bytes, nbytes, cut)
        arrivals += [flow.send(count, now) - 100.0] * count
        nbytes -= count
    return arrivals


def test_bytes_leave_at_the_rate_that_connections_share_and_arrive_after_the_latency():
    flow = emulated(up=8 * MBIT, latency=0.05)
    arrivals = send(flow, 1_000_000)
    assert arrivals[-1] == pytest.approx(1.05)
    assert arrivals[499_999] == pytest.approx(0.55, abs=0.006)
    # Nothing is saved up while nothing is sent.
    assert send(flow, 100_000, now=110.0)[-1] == pytest.approx(10.15)
    both = line(way="down", up=MBIT, down=8 * MBIT)
    model, answer = Flow("down", 3, both), Flow("up", 3, both)
    assert send(model, 500_000)[-1] == pytest.approx(0.5)
    assert send(answer, 500_000)[-1] == pytest.approx(1.0)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=40), st.integers(0, 99))
def test_no_byte_overtakes_another(sizes, seed):
    flow = emulated(seed, up=8 * MBIT, latency=0.01, jitter=0.5, loss=0.2)
    arrivals = [at for index, size in enumerate(sizes) for at in send(flow, size, 100 + index / 9)]
    assert arrivals == sorted(arrivals)


CHANCE = {"latency": 1.0, "jitter": 0.5, "loss": 0.3}
# Messages of 1,000 bytes, a day after one another, which are more than a piece.
DAYS = range(70)


def delays(flow, days=DAYS, cut=1000):
    """Return how late the first and the last byte of each message are."""
    sent = [(1e5 * day, send(flow, 1000, 100.0 + 1e5 * day, cut)) for day in days]
    return [(round(times[0] - at, 6), round(times[-1] - at, 6)) for at, times in sent]


def test_losses_and_jitter_are_those_of_the_seed_the_site_the_connection_and_the_way():
    flows = [("up", 3), ("down", 3), ("up", 4), ("up", 3, "site-2"), ("up", 3, "site-1", "down")]
    times = [
        delays(Flow(name, seed, line(*where, **CHANCE)))
        for name, seed, *where in [*flows, flows[0]]
    ]
    assert len({tuple(late) for late in times}) == 5
    assert times[-1] == times[0]


@given(st.integers(50, 1000), st.integers(0, 70))
def test_they_do_not_depend_on_how_the_bytes_are_cut_or_on_what_other_sites_send(cut, day):
    assert len(DAYS) > PIECE_PACKETS * PACKET_BYTES / 1000
    flow = emulated(**CHANCE)
    own, other = flow.line, line("site-2", **CHANCE)
    before = delays(flow, DAYS[:day], cut)
    flow.enter(other)
    send(flow, 1000)
    flow.enter(own)
    assert before + delays(flow, DAYS[day:]) == delays(emulated(**CHANCE))


def test_a_lost_packet_arrives_a_round_trip_later_and_what_follows_it_waits():
    flow = emulated(latency=1.0, loss=0.1)
    arrivals = send(flow, 100 * PACKET_BYTES)[::PACKET_BYTES]
    assert {round(at) for at in arrivals} >= {1, 3}
    first = arrivals.index(3.0)
    assert arrivals[:first] == [1.0] * first
    assert min(arrivals[first:]) == 3.0


def test_in_the_mean_as_many_packets_are_lost_and_take_as_long_as_is_said():
    flow = emulated(up=8 * MBIT, loss=0.1)
    sent = 10_000 * PACKET_BYTES
    # Each is sent 1 / (1 - loss) times in the mean.
    assert send(flow, sent)[-1] == pytest.approx(sent / 1e6 / 0.9, rel=0.02)
    flow = emulated(latency=1.0, jitter=0.5, loss=0.1)
    times = [send(flow, PACKET_BYTES, 100.0 + 1e5 * n)[-1] - 1e5 * n for n in range(10_000)]
    # Half the jitter, and a round trip for each time that it is lost.
    assert sum(times) / 10_000 == pytest.approx(1.25 * (1 + 2 * 0.1 / 0.9), rel=0.02)


def test_a_trace_changes_the_latency_and_leaves_the_rest_as_it_is():
    trace = (TracePoint(0, latency=0.5), TracePoint(10, latency=0.1))
    flow = emulated(up=8 * MBIT, latency=3.0, trace=trace)
    for at, latency in [(1, 0.5), (11, 0.1), (19, 0.1), (21, 0.5)]:
        assert send(flow, 1_000, now=100.0 + at)[-1] == pytest.approx(at + 0.001 + latency)


@given(st.floats(0.002, 50), st.floats(0.002, 50), st.integers(1, 5_000_000))
def test_what_a_trace_lets_through_is_its_rates_times_time(first, second, nbytes):
    """1 MB/s, then nothing, then 2 MB/s for as long as nothing, and so on."""
    rates = (TracePoint(0, 8 * MBIT), TracePoint(first, 0.0), TracePoint(first + second, 16 * MBIT))
    seconds = send(emulated(trace=rates), nbytes)[-1]
    rounds, rest = divmod(seconds, NetworkLink(trace=rates).period)
    passed = rounds * (first + 2 * second) + min(rest, first) + 2 * max(rest - first - second, 0.0)
    assert passed * 1e6 == pytest.approx(nbytes, abs=2 + 1e-5 * nbytes)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = open_files()
    yield
    assert "link-relay" not in [thread.name for thread in threading.enumerate()]
    assert open_files() == before


def relayed(links, site):
    ours, theirs = socket.socketpair()
    relay = LinkRelay(links, 0, site)
    return relay, relay.channel(theirs, "server", "up"), ours


@pytest.mark.parametrize("link", [NetworkLink(latency=30.0), NetworkLink(up=400.0)])
def test_what_is_sent_goes_over_the_link_of_the_site_that_has_begun(monkeypatch, link):
    monkeypatch.setattr(links, "_DRAIN_SECONDS", 0.0)
    relay, site, ours = relayed({"site-1": link, "site-2": NetworkLink()}, "site-2")
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    with ours, closing(relay):
        for words in (b"at once", b"and now"):
            site.send([memoryview(words)], Deadline(5))
            assert ours.recv(7, socket.MSG_WAITALL) == words
            relay.use("site-1")
            relay.use("site-2")
        relay.use("site-1")
        site.send([memoryview(bytes(1500))], Deadline(5))
        assert poll.poll(100) == []


def test_a_relay_delivers_what_was_sent_before_it_closes_and_ends_if_its_peer_takes_nothing():
    relay, channel, ours = relayed({"a": NetworkLink(latency=0.2)}, "a")
    with ours:
        channel.send([memoryview(b"goodbye")], Deadline(1))
        relay.close()
        assert ours.recv(7, socket.MSG_WAITALL) == b"goodbye"
        assert ours.recv(1) == b""
    assert channel.fileno() == -1
    relay, channel, ours = relayed({}, "a")
    with pytest.raises(DeadlineError):
        channel.send([memoryview(bytes(32 * MIB))], Deadline(0.1))
    ours.close()
    with pytest.raises(ChannelClosedError):
        channel.send([memoryview(bytes(32 * MIB))], Deadline(20))
    relay.close()
    assert channel.fileno() == -1  # also of a connection that is over


def test_a_forked_child_keeps_no_end_open():
    relay, _, ours = relayed({}, "a")
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
