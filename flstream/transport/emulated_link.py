"""When the bytes of an emulated link arrive: rates, latency, jitter and loss, without any socket.

The clock is passed in. A link has a serial line each way, which all connections of its site share:
a byte leaves once the line has sent those before it. Then it travels, and no byte overtakes another
of its connection. A lost packet is sent again after a round trip, so that it, and what comes after
it on its connection, arrives that much later.

Which packets are lost depends on the seed, the site, the connection and the number of the packet in
it alone, and never on how the bytes are cut into pieces.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import numpy as np

from flstream.job.link import NetworkLink
from flstream.model.random_numbers import Floats, stream_key, uniforms

Way = Literal["up", "down"]
"""Direction of bytes: from the site, or to it."""

PACKET_BYTES = 1460
"""Bytes of a packet, as TCP has them over Ethernet."""

# Seconds of a line that a piece takes at most, so that connections share it evenly; and the fewest
# and the most bytes of a piece.
_PIECE_SECONDS = 0.005
_LEAST_PIECE, _MOST_PIECE = 64, 64 << 10
# Seconds that bytes may wait for a line, so that it is busy although its thread wakes up late.
_AHEAD_SECONDS = 0.01
# Numbers that are drawn at a time.
_BLOCK = 512


class RepeatedSteps:
    """A number that changes from time to time, and begins anew after a period.

    Args:
        starts: Seconds at which it changes, rising from 0.
        values: What it is from each of them on.
        period: Seconds after which it begins anew; infinite if it does not.
    """

    def __init__(self, starts: Sequence[float], values: Sequence[float], period: float) -> None:
        self._starts = list(starts)
        self._values = list(values)
        self._period = period

    def at(self, seconds: float) -> float:
        """Return the number at a time."""
        return self._values[self._index(seconds)[0]]

    def change_after(self, seconds: float) -> float:
        """Return a later time up to which the number at a time is the same."""
        index, began = self._index(seconds)
        starts = self._starts
        end = began + (starts[index + 1] if index + 1 < len(starts) else self._period)
        return max(end, math.nextafter(seconds, math.inf))

    def _index(self, seconds: float) -> tuple[int, float]:
        """Return the index of the value at a time, and when its period began."""
        began = 0.0
        if self._period != math.inf:
            began = seconds // self._period * self._period
        return max(bisect_right(self._starts, seconds - began) - 1, 0), began


class SerialLine:
    """One way of a link: bytes leave one after another, at its rate.

    Args:
        rates: Bytes a second over time; infinite without limit.
        began: Time at which these begin.
    """

    def __init__(self, rates: RepeatedSteps, began: float) -> None:
        self._rates = rates
        self._began = began
        self._free_at = began

    @property
    def admits_at(self) -> float:
        """Time from which on it takes bytes."""
        return self._free_at - _AHEAD_SECONDS

    @property
    def piece_bytes(self) -> int:
        """Bytes that it takes at a time."""
        rate = self._rates.at(max(self._free_at - self._began, 0.0))
        return int(min(max(rate * _PIECE_SECONDS, _LEAST_PIECE), _MOST_PIECE))

    def send(self, nbytes: int, now: float) -> float:
        """Send bytes after those before them, and return the time at which the last one leaves."""
        at, left = max(self._free_at, now) - self._began, float(nbytes)
        while True:
            rate, end = self._rates.at(at), self._rates.change_after(at)
            if rate and left / rate <= end - at:
                self._free_at = self._began + at + left / rate
                return self._free_at
            left -= rate * (end - at)
            at = end


class Packets:
    """The packets of one connection one way: which are lost, and how long each is on its way.

    Args:
        key: What its random numbers belong to.
        loss: Probability that a packet is lost.
    """

    def __init__(self, key: bytes, loss: float) -> None:
        self._key = key
        self._loss = loss
        self._first = -1
        self._numbers: Floats = np.empty(0)
        self._lost: list[int] = []

    def times_lost(self, packet: int) -> int:
        """Return how often in a row a packet is lost."""
        if not self._loss:
            return 0
        self._draw(packet)
        number = float(self._numbers[2 * (packet - self._first)])
        return int(math.log(number) / math.log(self._loss)) if number < self._loss else 0

    def next_lost(self, packet: int) -> int:
        """Return the number of the next packet after this one that may be lost."""
        if not self._loss:
            return packet + _BLOCK
        self._draw(packet)
        place = bisect_right(self._lost, packet)
        return self._lost[place] if place < len(self._lost) else self._first + _BLOCK

    def share(self, packet: int) -> float:
        """Return the share of the jitter by which a packet is late, from 0 to 1."""
        self._draw(packet)
        return float(self._numbers[2 * (packet - self._first) + 1])

    def _draw(self, packet: int) -> None:
        """Have the numbers of the block that a packet is in: two for each packet."""
        first = packet // _BLOCK * _BLOCK
        if first != self._first:
            self._first = first
            self._numbers = uniforms(self._key, 2 * first, 2 * _BLOCK)
            lost = np.nonzero(self._numbers[::2] < self._loss)[0]
            self._lost = [first + int(index) for index in lost]


class PacedFlow:
    """The bytes of one connection one way over a link.

    Args:
        link: The link.
        way: Direction of the bytes.
        packets: Their packets.
        position: Bytes that were sent before.

    Attributes:
        position: Bytes that were sent.
    """

    def __init__(self, link: EmulatedLink, way: Way, packets: Packets, position: int) -> None:
        self.position = position
        self._link = link
        self._line = link.lines[way]
        self._packets = packets
        self._arrived = -math.inf

    @property
    def admits_at(self) -> float:
        """Time from which on bytes may be sent."""
        return self._line.admits_at

    @property
    def piece_bytes(self) -> int:
        """Bytes that may be sent at a time, which are of one lost packet or of none."""
        packet, inside = divmod(self.position, PACKET_BYTES)
        if inside:
            stop = self._packets.next_lost(packet)
        else:
            is_lost = self._packets.times_lost(packet) > 0
            stop = packet + 1 if is_lost else self._packets.next_lost(packet)
        return min(self._line.piece_bytes, stop * PACKET_BYTES - self.position)

    def send(self, nbytes: int, now: float) -> float:
        """Send bytes, and return the time at which they arrive.

        Args:
            nbytes: How many, from 1 to :attr:`piece_bytes`.
            now: Time at which they are there to be sent.
        """
        packet, inside = divmod(self.position, PACKET_BYTES)
        lost = 0 if inside else self._packets.times_lost(packet)
        left_at = self._line.send(nbytes + lost * PACKET_BYTES, now)
        latency = self._link.latency_at(left_at)
        delay = (1 + 2 * lost) * latency
        if self._link.jitter:
            delay += (1 + 2 * lost) * self._link.jitter * self._packets.share(packet)
        self.position += nbytes
        self._arrived = max(self._arrived, left_at + delay)
        return self._arrived


class EmulatedLink:
    """The link of a site, as its bytes see it.

    Args:
        link: What it is.
        seed: Seed of what is random.
        site: Name of the site.
        began: Time at which its trace begins.

    Attributes:
        jitter: Seconds that a packet may be late.
        lines: Its serial lines, which all connections share.
    """

    def __init__(self, link: NetworkLink, seed: int, site: str, began: float) -> None:
        self.jitter = link.jitter
        self._link = link
        self._parts = (seed, "network", site)
        self._began = began
        self.lines = {
            way: SerialLine(self._steps([*map(_bytes_a_second, rates)]), began)
            for way, rates in (("up", link.values("up")), ("down", link.values("down")))
        }
        self._latency = self._steps(link.values("latency"))

    def latency_at(self, now: float) -> float:
        """Return the seconds that a byte travels that leaves now."""
        return self._latency.at(now - self._began)

    def flow(self, way: Way, connection: str, position: int = 0) -> PacedFlow:
        """Return the bytes of a connection one way.

        Args:
            way: Direction of the bytes.
            connection: Name of the connection.
            position: Bytes that were sent on it before.
        """
        key = stream_key(*self._parts, connection, way)
        return PacedFlow(self, way, Packets(key, self._link.loss), position)

    def _steps(self, values: Sequence[float]) -> RepeatedSteps:
        starts = [each.seconds for each in self._link.trace] or [0.0]
        return RepeatedSteps(starts, values, self._link.period)


def _bytes_a_second(rate: float | None) -> float:
    return math.inf if rate is None else rate / 8
