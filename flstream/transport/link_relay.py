"""Connections over an emulated link: a thread passes their bytes on, when the link delivers them.

A relay is in the process of the site. It has the real socket of each connection, and the process
gets one end of a socket pair in its place. As on a network, what was sent before one end was closed
still arrives at the other, and then that is closed, too.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from flstream.job.link import NetworkLink
from flstream.transport.channel import Signal
from flstream.transport.emulated_link import EmulatedLink, PacedFlow, Way
from flstream.transport.linked_connection import LinkedConnection
from flstream.transport.sockets import SMALL_BUFFER, SocketChannel

# Seconds for what was sent to leave once the process is done with its connections.
_DRAIN_SECONDS = 5.0


class LinkRelay:
    """Connections of one process over the emulated links of its sites.

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
        self._connections: list[LinkedConnection] = []
        # The process's ends, also of connections that are over: nobody else may close them.
        self._channels: list[SocketChannel] = []
        self._site = site or ""
        self._link = self._emulated(self._site)
        # Bytes that other sites have sent before, which number the packets of those to come.
        self._positions: dict[tuple[str, str, Way], int] = {}
        self._closing_at: float | None = None
        self._turn = 0
        self._wake = Signal()
        self._thread = threading.Thread(target=self._serve, name="link-relay", daemon=True)
        self._thread.start()

    def channel(self, sock: socket.socket, peer: str, name: str) -> SocketChannel:
        """Return a channel over the link.

        Args:
            sock: Socket to the peer, which belongs to the relay from here on.
            peer: Name of the process at the other end, for messages.
            name: Name of the connection, alike in all processes of the same site.
        """
        inner, ours = socket.socketpair()
        channel = SocketChannel(ours, peer, buffer=SMALL_BUFFER)
        inner.setblocking(False)
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:  # where it would be of no effect
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        with self._lock:
            up, down = self._flow("up", name), self._flow("down", name)
            self._connections.append(LinkedConnection(name, sock, inner, up, down))
            self._channels = [each for each in self._channels if each.fileno() >= 0]
            self._channels.append(channel)
        self._wake.set()
        return channel

    def use(self, site: str) -> None:
        """Have what is sent from here on travel over the link of another site."""
        with self._lock:
            if site == self._site:
                return
            for each in self._connections:
                for stream in each.streams:
                    place = (self._site, each.name, stream.way)
                    self._positions[place] = stream.flow.position
            self._site, self._link = site, self._emulated(site)
            for each in self._connections:
                for stream in each.streams:
                    stream.flow = self._flow(stream.way, each.name)
        self._wake.set()

    def abandon(self) -> None:
        """Close the file descriptors alone, in a forked child, which has no such thread."""
        for each in self._connections:
            each.abandon()
        for channel in self._channels:
            if channel.fileno() >= 0:
                os.close(channel.detach().detach())

    def close(self) -> None:
        """Close all connections, once what was sent has left, and end the thread."""
        with self._lock:
            self._closing_at = time.monotonic() + _DRAIN_SECONDS
            for channel in self._channels:
                channel.close()
        self._wake.set()
        self._thread.join()
        self._wake.close()

    def _emulated(self, site: str) -> EmulatedLink:
        link = self._links.get(site) or NetworkLink()
        return EmulatedLink(link, self._seed, site, self._began)

    def _flow(self, way: Way, name: str) -> PacedFlow:
        return self._link.flow(way, name, self._positions.get((self._site, name, way), 0))

    def _serve(self) -> None:
        try:
            self._pass_on()
        finally:
            # Also after a defect, so that peers see the end of their channels instead of silence.
            for each in self._connections:
                each.close()

    def _pass_on(self) -> None:
        while True:
            with self._lock:
                wait, wanted = self._advance()
                if self._closing_at is not None:
                    left = self._closing_at - time.monotonic()
                    if left <= 0 or not self._connections:
                        return
                    wait = left if wait is None else min(wait, left)
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            for fd, events in wanted.items():
                poll.register(fd, events)
            poll.poll(None if wait is None else max(wait, 0.0) * 1e3)
            self._wake.clear()

    def _advance(self) -> tuple[float | None, dict[int, int]]:
        """Pass on what can be; return the seconds to wait, and the events to wait for."""
        now = time.monotonic()
        # Whose turn it is first goes round, so that none has a line to itself.
        self._turn += 1
        start = self._turn % max(len(self._connections), 1)
        for each in [*self._connections[start:], *self._connections[:start]]:
            for stream in each.streams:
                stream.deliver(now)
                if stream.takes_more and stream.flow.admits_at <= now:
                    stream.read(now)
                    stream.deliver(now)  # of a link without delay
            if each.is_over():
                each.close()
                self._connections.remove(each)
        return self._next(now)

    def _next(self, now: float) -> tuple[float | None, dict[int, int]]:
        times: list[float] = []
        wanted: dict[int, int] = {}
        for each in self._connections:
            for stream in each.streams:
                if stream.takes_more and stream.flow.admits_at <= now:
                    source = stream.source.fileno()
                    wanted[source] = wanted.get(source, 0) | select.POLLIN
                elif stream.takes_more:
                    times.append(stream.flow.admits_at)
                if stream.is_blocked:
                    sink = stream.sink.fileno()
                    wanted[sink] = wanted.get(sink, 0) | select.POLLOUT
                if (due := stream.due_at) is not None:
                    times.append(due)
        return (min(times) - now if times else None), wanted


@contextmanager
def emulated_pipe(
    first: str, second: str, link: NetworkLink, *, seed: int = 0
) -> Iterator[tuple[SocketChannel, SocketChannel]]:
    """Make two connected channels with an emulated link between them.

    What the second sends goes up the link, and what it receives comes down.

    Args:
        first: Name of the process at one end, such as the server.
        second: Name of the process at the other end: the site, whose link it is.
        link: The link.
        seed: Seed of what is random.

    Yields:
        The end of ``first``, and that of ``second``.
    """
    ours, theirs = socket.socketpair()
    with closing(SocketChannel(ours, second, buffer=SMALL_BUFFER)) as server:
        relay = LinkRelay({second: link}, seed, second)
        site = relay.channel(theirs, first, first)
        try:
            yield server, site
        finally:
            server.close()
            site.close()
            relay.close()
