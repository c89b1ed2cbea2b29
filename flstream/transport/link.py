"""Emulated links: a site's real bytes, delivered when its link would deliver them.

A link has a serial line each way, which all connections of its site share: a byte leaves once the
line has sent those before it. Then it travels, and no byte overtakes another of its connection. A
lost packet takes the line again and arrives a round trip later, and what follows it on its
connection waits.

A relay is in the process of the site. It has the real socket of each connection, and the process
gets one end of a socket pair in its place; a thread passes the bytes on. As on a network, what was
sent before one end was closed still arrives at the other, and then that is closed, too.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from itertools import chain, takewhile
from typing import Literal

from flstream.job.network_section import NetworkLink
from flstream.model.random_numbers import stream_key, uniforms
from flstream.transport.channel import SMALL_BUFFER, Channel, Signal

Way = Literal["up", "down"]
"""Direction of bytes: from the site, or to it."""

PACKET_BYTES = 1460
"""Bytes of a packet, as TCP has them over Ethernet."""
PIECE_PACKETS = 44
"""Packets of a piece of a connection's stream, whose random numbers are drawn together."""

# Seconds of a line that bytes take at a time at most, so that connections share it evenly; and the
# fewest and the most bytes at a time.
_TURN_SECONDS = 0.005
_LEAST_BYTES, _MOST_BYTES = 64, 64 << 10
# Seconds that bytes may wait for a line, so that it is busy although its thread wakes up late.
_AHEAD_SECONDS = 0.01
# Bytes that may be on their way on one connection one way, as a window of TCP limits them.
_MOST_ON_THEIR_WAY = 8 << 20
# Seconds for what was sent to leave once the process is done with its connections.
_DRAIN_SECONDS = 5.0


class Line:
    """One way of a site's link; its trace begins at ``began``, by the caller's clock."""

    def __init__(self, link: NetworkLink, site: str, way: Way, began: float) -> None:
        self.link, self.site, self.way = link, site, way
        self._began = began
        self.free_at = began  # when the last byte so far leaves
        rates = [math.inf if bits is None else bits / 8 for bits in link.values(way)]
        self._states = list(zip(rates, link.values("latency"), strict=True))
        self._starts = [point.seconds for point in link.trace] or [0.0]
        self._ends = [*self._starts[1:], link.period]

    @property
    def most_bytes(self) -> int:
        """Bytes that the line takes at a time."""
        rate, _, _ = self._state(self.free_at)
        return int(min(max(rate * _TURN_SECONDS, _LEAST_BYTES), _MOST_BYTES))

    def send(self, nbytes: int, now: float) -> tuple[float, float]:
        """Send bytes; return when the last one leaves, and the seconds that it travels."""
        at, waiting = max(self.free_at, now), float(nbytes)
        while True:
            rate, latency, ends = self._state(at)
            if rate and waiting / rate <= ends - at:
                break
            waiting -= rate * (ends - at)
            at = ends
        self.free_at = at + waiting / rate
        return self.free_at, latency

    def _state(self, at: float) -> tuple[float, float, float]:
        """Return bytes a second and latency at a time, and until when they last."""
        inside = math.fmod(at - self._began, self._ends[-1])
        index = bisect_right(self._starts, inside) - 1
        ends = at - inside + self._ends[index]
        return *self._states[index], max(ends, math.nextafter(at, math.inf))


class Flow:
    """Bytes of one connection one way, and the time at which each arrives.

    How late they are depends on the seed, the site, the connection's name, the way and their place
    in the stream alone, and never on how they are cut. Other flows share the line.
    """

    def __init__(self, name: str, seed: int, line: Line) -> None:
        self._name = name
        self._seed = seed
        self._sent: Counter[str] = Counter()  # bytes, by the site whose line it was
        self._arrived = -math.inf
        self.enter(line)

    def enter(self, line: Line) -> None:
        """Send the following bytes by another line, such as another site's."""
        self.line = line
        self._key = stream_key(self._seed, "network", line.site, self._name, line.way)
        self._drawn: tuple[int, float, list[int]] = -1, 0.0, []

    @property
    def most_bytes(self) -> int:
        """Most bytes to send at a time, of one piece and of packets with one fate."""
        return min(self.line.most_bytes, self._fate()[2])

    def send(self, nbytes: int, now: float) -> float:
        """Send bytes, from 1 to :attr:`most_bytes`; return the time of their arrival."""
        share, lost, _ = self._fate()
        left_at, latency = self.line.send(nbytes * (1 + lost), now)
        self._sent[self.line.site] += nbytes
        delay = (1 + 2 * lost) * (latency + share * self.line.link.jitter)
        self._arrived = max(self._arrived, left_at + delay)
        return self._arrived

    def _fate(self) -> tuple[float, int, int]:
        """Return the jitter's share, a packet's count of losses, and for how many bytes."""
        jitter, loss = self.line.link.jitter, self.line.link.loss
        if not (jitter or loss):
            return 0.0, 0, _MOST_BYTES
        packet, inside = divmod(self._sent[self.line.site], PACKET_BYTES)
        piece, packet = divmod(packet, PIECE_PACKETS)
        if piece != self._drawn[0]:
            count = 1 + PIECE_PACKETS
            share, *numbers = uniforms(self._key, piece * count, count).tolist()
            # A packet is lost n times in a row or more with a probability of loss to the power n.
            losses = [int(math.log(number, loss)) if number < loss else 0 for number in numbers]
            self._drawn = piece, share, losses
        _, share, losses = self._drawn
        alike = len([*takewhile(losses[packet].__eq__, losses[packet:])])
        return share, losses[packet], alike * PACKET_BYTES - inside


class _OneWay:
    """One way of a connection: bytes that wait for their arrival."""

    def __init__(self, source: socket.socket, sink: socket.socket, flow: Flow) -> None:
        self.source = source
        self.flow = flow
        self._has_ended = False  # so that nothing more is read
        self._sink = sink
        self._is_blocked = False  # since the sink has no room
        self._slices: deque[tuple[float, memoryview]] = deque()
        self._waiting = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self._has_ended and not self._slices

    def advance(self, now: float) -> bool:
        """Read from the source, whose end this returns, and deliver arrived bytes."""
        ends = self._reads_at <= now and self._read(now)
        self._is_blocked = False
        while self._slices and self._slices[0][0] <= now and not self._is_blocked:
            arrival, data = self._slices.popleft()
            try:
                count = self._sink.send(data)
            except BlockingIOError:
                count, self._is_blocked = 0, True
            except OSError:
                self.cut()
                break
            self._waiting -= count
            if count < len(data):
                self._slices.appendleft((arrival, data[count:]))
        return ends

    def await_in(self, events: defaultdict[int, int], now: float) -> float:
        """Add the awaited events by descriptor, and return the time of the next delivery."""
        if (at := self._reads_at) <= now:
            at = math.inf
            events[self.source.fileno()] |= select.POLLIN
        if self._is_blocked:
            events[self._sink.fileno()] |= select.POLLOUT
        elif self._slices:
            at = min(at, self._slices[0][0])
        return at

    def cut(self) -> None:
        """Drop bytes on their way, and all later ones."""
        self._has_ended = True
        self._slices.clear()

    @property
    def _reads_at(self) -> float:
        """Time from which the relay reads more from the source."""
        if self._has_ended or self._waiting >= _MOST_ON_THEIR_WAY:
            return math.inf
        return self.flow.line.free_at - _AHEAD_SECONDS

    def _read(self, now: float) -> bool:
        try:
            data = self.source.recv(self.flow.most_bytes)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._slices.append((self.flow.send(len(data), now), memoryview(data)))
            self._waiting += len(data)
        self._has_ended = not data
        return self._has_ended


class LinkRelay:
    """Relay of one process's connections over the emulated links of its sites.

    At any time, all of them have the link of one site, and share its rates.

    Args:
        links: Links by the names of their sites.
        seed: Seed of what is random.
        site: Site whose link it is at first; None for one without limits, before the first task.
    """

    def __init__(self, links: Mapping[str, NetworkLink], seed: int, site: str | None) -> None:
        self._links = links
        self._seed = seed
        self._began = time.monotonic()
        self._lock = threading.Lock()  # guards the fields below
        self._lines = self._lines_of(site or "")  # up and down
        self._connections: deque[tuple[_OneWay, _OneWay]] = deque()  # likewise
        # The process's ends, also of connections that are over: nobody else may close them.
        self._channels: list[Channel] = []
        self._closing_at = math.inf
        self._wake = Signal()
        self._thread = threading.Thread(target=self._serve, name="link-relay", daemon=True)
        self._thread.start()

    def channel(self, sock: socket.socket, peer: str, name: str) -> Channel:
        """Return a channel over the link.

        It sends no beats, also over TCP: a link's outage may hold them back for longer than a
        sender waits for one. The system still finds out that a machine is gone.

        Args:
            sock: Socket to the peer, which belongs to the relay from here on.
            peer: Name of the process at the other end, for messages.
            name: Name of the connection, alike in all processes of the same site.
        """
        inner, ours = socket.socketpair()
        channel = Channel(ours, peer, buffer=SMALL_BUFFER)
        inner.setblocking(False)
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:  # where it would be of no effect
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        with self._lock:
            up, down = (Flow(name, self._seed, line) for line in self._lines)
            self._connections.append((_OneWay(inner, sock, up), _OneWay(sock, inner, down)))
            self._channels = [known for known in self._channels if known.fileno() >= 0]
            self._channels.append(channel)
        self._wake.set()
        return channel

    def use(self, site: str) -> None:
        """Send over the link of another site from now on."""
        with self._lock:
            if site != self._lines[0].site:
                self._lines = self._lines_of(site)
                for streams in self._connections:
                    for stream, line in zip(streams, self._lines, strict=True):
                        stream.flow.enter(line)
        self._wake.set()

    def abandon(self) -> None:
        """Close the file descriptors alone, in a forked child, which has no such thread."""
        ends = [stream.source for stream in chain.from_iterable(self._connections)]
        ends += [channel.detach() for channel in self._channels if channel.fileno() >= 0]
        for end in ends:
            if end.fileno() >= 0:
                os.close(end.detach())

    def close(self) -> None:
        """Close all connections after their last bytes, and end the thread."""
        with self._lock:
            self._closing_at = time.monotonic() + _DRAIN_SECONDS
            for channel in self._channels:
                channel.close()
        self._wake.set()
        self._thread.join()
        self._wake.close()

    def _lines_of(self, site: str) -> tuple[Line, Line]:
        link = self._links.get(site) or NetworkLink()
        return Line(link, site, "up", self._began), Line(link, site, "down", self._began)

    def _serve(self) -> None:
        try:
            while self._advance():
                self._wake.clear()
        finally:
            # Also after a defect, so that peers see the end of their channels instead of silence.
            for stream in chain.from_iterable(self._connections):
                stream.source.close()

    def _advance(self) -> bool:
        """Pass on bytes, and wait for more; return False at the end."""
        events = defaultdict(int, {self._wake.fileno(): select.POLLIN})
        with self._lock:
            now, until = time.monotonic(), self._closing_at
            # Whose turn it is first goes round, so that none has a line to itself.
            self._connections.rotate(1)
            for up, down in list(self._connections):
                # Channels are never closed in one direction alone.
                if up.advance(now):
                    down.cut()
                if down.advance(now):
                    up.cut()
                if up.is_over and down.is_over:
                    self._connections.remove((up, down))
                    up.source.close()
                    down.source.close()
                else:
                    until = min(until, up.await_in(events, now), down.await_in(events, now))
            if self._closing_at <= now or (self._closing_at < math.inf and not self._connections):
                return False
        poll = select.poll()
        for fd, event in events.items():
            poll.register(fd, event)
        poll.poll(None if until == math.inf else max(until - now, 0.0) * 1e3)
        return True
