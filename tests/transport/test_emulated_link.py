"""When bytes arrive over an emulated link, by a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.job.link import NetworkLink, TracePoint
from flstream.transport.emulated_link import PACKET_BYTES, EmulatedLink

MBIT = 1e6


def emulated(seed=3, site="site-1", **link):
    return EmulatedLink(NetworkLink(**link), seed, site, began=100.0)


def send(flow, nbytes, now=100.0, cut=1 << 30):
    """Send bytes in pieces of at most ``cut``; return when each byte's piece arrives."""
    arrivals = []
    while nbytes:
        count = min(flow.piece_bytes, nbytes, cut)
        arrivals += [flow.send(count, now) - 100.0] * count
        nbytes -= count
    return arrivals


def test_bytes_leave_at_the_rate_of_the_link_and_arrive_after_its_latency():
    flow = emulated(up=8 * MBIT, latency=0.05).flow("up", "up")
    arrivals = send(flow, 1_000_000)
    assert arrivals[-1] == pytest.approx(1.05)
    assert arrivals[499_999] == pytest.approx(0.55, abs=0.006)
    # What comes next is read a little before the line is free, so that it is never idle.
    assert 100.9 < flow.admits_at < 100.999
    # Nothing is saved up while nothing is sent.
    assert send(flow, 100_000, now=110.0)[-1] == pytest.approx(10.15)


def test_connections_share_a_rate_and_ways_do_not():
    link = emulated(up=8 * MBIT, down=80 * MBIT)
    update, request = link.flow("up", "up"), link.flow("up", "down")
    assert send(update, 500_000)[-1] == pytest.approx(0.5)
    assert send(request, 500_000)[-1] == pytest.approx(1.0)
    assert send(link.flow("down", "down"), 1_000_000)[-1] == pytest.approx(0.1)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=40), st.integers(0, 99))
def test_no_byte_overtakes_another(sizes, seed):
    link = emulated(seed, up=8 * MBIT, latency=0.01, jitter=0.5, loss=0.2)
    flow = link.flow("up", "up")
    arrivals = [at for index, size in enumerate(sizes) for at in send(flow, size, 100 + index / 9)]
    assert arrivals == sorted(arrivals)


@given(st.integers(100, 3000), st.integers(0, 9))
def test_which_packets_are_lost_does_not_depend_on_how_the_bytes_are_cut(cut, seed):
    """Without a rate and jitter, the time of arrival tells how often a packet was lost."""

    def lost(cut):
        packets = emulated(seed, latency=1.0, loss=0.3).flow("up", "up")
        return [
            send(packets, PACKET_BYTES, now=100.0 + 1e6 * number, cut=cut)[-1] - 1e6 * number
            for number in range(60)
        ]

    assert lost(cut) == lost(1 << 30)


def test_a_lost_packet_arrives_a_round_trip_later_and_what_follows_it_waits():
    flow = emulated(latency=1.0, loss=0.1).flow("up", "up")
    arrivals = send(flow, 100 * PACKET_BYTES)[::PACKET_BYTES]
    assert {round(at) for at in arrivals} >= {1, 3}
    first = arrivals.index(3.0)
    assert arrivals[:first] == [1.0] * first
    assert min(arrivals[first:]) == 3.0


def test_as_many_packets_are_lost_as_is_said_and_take_the_line_again():
    flow = emulated(up=8 * MBIT, loss=0.1).flow("up", "up")
    sent = 10_000 * PACKET_BYTES
    # Each is sent 1 / (1 - loss) times in the mean.
    assert send(flow, sent)[-1] == pytest.approx(sent / 1e6 / 0.9, rel=0.02)


def test_losses_and_jitter_are_those_of_the_seed_the_site_the_connection_and_the_way():
    how = {"latency": 1.0, "jitter": 0.5, "loss": 0.2}

    def arrivals(way="up", connection="up", **who):
        flow = emulated(**how, **who).flow(way, connection)
        return send(flow, 50 * PACKET_BYTES, cut=PACKET_BYTES)

    others = {"seed": 4, "site": "site-2", "connection": "down", "way": "down"}
    known = [arrivals(), *(arrivals(**{name: other}) for name, other in others.items())]
    assert arrivals() == known[0]
    assert len({tuple(each) for each in known}) == 5


def test_a_flow_goes_on_with_the_packet_that_another_left_off_at():
    link = emulated(latency=1.0, loss=0.2)
    whole = send(link.flow("up", "up"), 100 * PACKET_BYTES)
    first = link.flow("up", "up")
    send(first, 40 * PACKET_BYTES)
    rest = send(link.flow("up", "up", first.position), 60 * PACKET_BYTES)
    assert max(rest) == max(whole[40 * PACKET_BYTES :])


def test_a_trace_changes_the_link_over_time_and_begins_anew():
    # 1 MB/s for 2 s, nothing for 1 s, 2 MB/s for 1 s: 4 MB in 4 s.
    trace = (TracePoint(0, 8 * MBIT), TracePoint(2, 0.0), TracePoint(3, 16 * MBIT))
    flow = emulated(trace=trace).flow("up", "up")
    arrivals = send(flow, 9_000_000)
    for sent, seconds in [(1, 1), (2, 2), (3, 3.5), (4, 4), (5, 5), (6, 6), (8, 8), (9, 9)]:
        # A byte arrives with its piece.
        assert arrivals[sent * 1_000_000 - 1] == pytest.approx(seconds, abs=0.006), sent


def test_a_trace_changes_the_latency_and_leaves_the_rest_as_it_is():
    trace = (TracePoint(0, latency=0.5), TracePoint(10, latency=0.1))
    link = emulated(up=8 * MBIT, latency=3.0, trace=trace)
    flow = link.flow("up", "up")
    assert send(flow, 1_000, now=101.0)[-1] == pytest.approx(1.501)
    assert send(flow, 1_000, now=111.0)[-1] == pytest.approx(11.101)
    assert link.latency_at(121.0) == 0.5
    assert link.latency_at(119.0) == 0.1


@given(st.floats(0.002, 50), st.floats(0.002, 50), st.integers(1, 5_000_000))
def test_what_a_trace_lets_through_is_its_rate_times_time(first, second, nbytes):
    trace = (TracePoint(0, 8 * MBIT), TracePoint(first, 0.0), TracePoint(first + second, 8 * MBIT))
    flow = emulated(trace=trace).flow("up", "up")
    seconds = send(flow, nbytes)[-1]
    period = NetworkLink(trace=trace).period
    rounds, rest = divmod(seconds, period)
    busy = rounds * (period - second) + rest - min(max(rest - first, 0.0), second)
    assert busy * 1e6 == pytest.approx(nbytes, abs=2 + 1e-5 * nbytes)
