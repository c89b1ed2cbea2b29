"""A connection over an emulated link: what is on its way, each way, until it arrives."""

from __future__ import annotations

import os
import socket
from collections import deque

from flstream.transport.emulated_link import PacedFlow, Way

# Bytes that may be on their way on one connection one way, as a window of TCP limits them.
_MOST_ON_THEIR_WAY = 8 << 20


class PacedStream:
    """One way of a connection: bytes that wait until they arrive.

    Args:
        source: Socket that they come from.
        sink: Socket that they go to.
        way: Direction of the bytes.
        flow: When they arrive.

    Attributes:
        flow: As given; another one once the link is that of another site.
        has_ended: Whether the source has ended.
        is_cut: Whether nobody is left to receive them.
        is_blocked: Whether the sink has no room.
    """

    def __init__(
        self, source: socket.socket, sink: socket.socket, way: Way, flow: PacedFlow
    ) -> None:
        self.source = source
        self.sink = sink
        self.way: Way = way
        self.flow = flow
        self.has_ended = self.is_cut = self.is_blocked = False
        self._pieces: deque[tuple[float, memoryview]] = deque()
        self._waiting = 0

    @property
    def takes_more(self) -> bool:
        """Whether bytes are read from the source once the link admits them."""
        return not (self.has_ended or self.is_cut) and self._waiting < _MOST_ON_THEIR_WAY

    @property
    def is_over(self) -> bool:
        """Whether the source has ended, and all that it sent has arrived or is lost."""
        return self.has_ended and not self._pieces

    @property
    def due_at(self) -> float | None:
        """Time at which the next bytes arrive; None if there are none, or no room for them."""
        return self._pieces[0][0] if self._pieces and not self.is_blocked else None

    def read(self, now: float) -> None:
        """Have a piece of what the source has sent travel."""
        try:
            piece = self.source.recv(self.flow.piece_bytes)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.has_ended = True
            return
        self._pieces.append((self.flow.send(len(piece), now), memoryview(piece)))
        self._waiting += len(piece)

    def deliver(self, now: float) -> None:
        """Hand over what has arrived by now, as far as there is room."""
        self.is_blocked = False
        while self._pieces and self._pieces[0][0] <= now:
            due, piece = self._pieces[0]
            try:
                count = self.sink.send(piece)
            except BlockingIOError:
                self.is_blocked = True
                return
            except OSError:
                self.cut()
                return
            self._waiting -= count
            if count < len(piece):
                self._pieces[0] = due, piece[count:]
            else:
                self._pieces.popleft()

    def cut(self) -> None:
        """Drop what is on its way, and whatever comes."""
        self.is_cut = True
        self._pieces.clear()
        self._waiting = 0


class LinkedConnection:
    """A connection over the link.

    Args:
        name: What its random numbers belong to.
        outer: Socket to the other end of the link.
        inner: The relay's end of the pair.
        up: When bytes arrive that go up the link.
        down: When bytes arrive that come down.
    """

    def __init__(
        self,
        name: str,
        outer: socket.socket,
        inner: socket.socket,
        up: PacedFlow,
        down: PacedFlow,
    ) -> None:
        self.name = name
        self.outer = outer
        self.inner = inner
        self.up = PacedStream(inner, outer, "up", up)
        self.down = PacedStream(outer, inner, "down", down)

    @property
    def streams(self) -> tuple[PacedStream, PacedStream]:
        """Both ways."""
        return self.up, self.down

    def is_over(self) -> bool:
        """Return whether one end is closed, and what it sent has arrived; the rest is dropped.

        Channels are never closed in one direction alone.
        """
        if self.up.has_ended:
            self.down.cut()
        elif self.down.has_ended:
            self.up.cut()
        return self.up.is_over or self.down.is_over or (self.up.is_cut and self.down.is_cut)

    def close(self) -> None:
        """Close the relay's sockets."""
        self.inner.close()
        self.outer.close()

    def abandon(self) -> None:
        """Close the file descriptors alone, in a forked child."""
        for each in (self.inner, self.outer):
            if each.fileno() >= 0:
                os.close(each.detach())
