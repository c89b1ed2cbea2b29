"""A link between nodes and a launcher that breaks as a test wants it: a relay of connections."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from flstream.transport.authentication import GREETING_BYTES, Greeting

TO_LAUNCHER, TO_NODE = "to the launcher", "to the node"

_PIECE_BYTES = 64 << 10
# What is kept of the beginning of a connection: a handshake, and some messages after it.
_MOST_RECORDED = 4096
_PATIENCE = 60.0


class Link:
    """A connection of a node to the launcher, by way of a relay.

    Attributes:
        role: What its greeting says that it is to be; empty before that has passed.
        recorded: The first bytes that the node has sent.
        passed: How many bytes have passed each way.
        held: The ways on which no more passes, since the relay was told so.
        is_cut: Whether it was ended by the relay.
        source: Address from which the launcher sees it come.
        port: Port from which the node made it.
    """

    def __init__(self, node: socket.socket, launcher: socket.socket) -> None:
        self.role = ""
        self.recorded = bytearray()
        self.passed: Counter[str] = Counter()
        self.held: set[str] = set()
        self.is_cut = False
        self.source = str(launcher.getsockname()[0])
        self.port = int(node.getpeername()[1])
        self._ends = (node, launcher)

    def between(self, way: str) -> tuple[socket.socket, socket.socket]:
        """Return where bytes of a way come from, and where they go."""
        node, launcher = self._ends
        return (node, launcher) if way == TO_LAUNCHER else (launcher, node)

    def note(self, way: str, piece: bytes) -> None:
        """Count bytes that have come, and read what the connection is to be."""
        self.passed[way] += len(piece)
        if way == TO_LAUNCHER and len(self.recorded) < _MOST_RECORDED:
            self.recorded += piece
            if not self.role and len(self.recorded) >= GREETING_BYTES:
                greeting = Greeting.parse(self.recorded[:GREETING_BYTES])
                self.role = greeting.role.decode() if greeting else "stranger"

    def cut(self) -> None:
        """End it for both sides."""
        self.is_cut = True
        self.shut()

    def shut(self) -> None:
        """End the streams of both sides, also for the threads that wait for them."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both ends."""
        for end in self._ends:
            end.close()


class Relay:
    """Passes on what nodes and a launcher send each other, until it is told otherwise.

    Args:
        launcher: Address of the launcher, ``HOST:PORT``.
        source: Address of this machine from which it connects to the launcher.

    Attributes:
        address: Where the nodes connect, ``HOST:PORT``.
    """

    def __init__(self, launcher: str, source: str = "127.0.0.1") -> None:
        host, port = launcher.split(":")
        self._launcher = host, int(port)
        self._source = source
        self._changed = threading.Condition()  # guards all that follow
        self._links: list[Link] = []
        self._kept: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._limits: dict[tuple[str, str], tuple[int, bool]] = {}
        self._is_silent = False
        self._is_closed = False
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._begin(self._accept)

    def links(self, role: str) -> list[Link]:
        """Return the connections of a role so far, in the order in which they were made."""
        with self._changed:
            return [link for link in self._links if link.role == role]

    def hold(self, role: str, way: str, after: int) -> None:
        """Pass no more than so many bytes one way of each connection of a role."""
        self._limit(role, way, after, cuts=False)

    def cut(self, role: str, way: str, after: int) -> None:
        """End each connection of a role after so many bytes have passed one way."""
        self._limit(role, way, after, cuts=True)

    def mend(self) -> None:
        """Pass everything again of what is held or made from now on."""
        with self._changed:
            self._limits.clear()
            self._changed.notify_all()

    def silence(self) -> None:
        """Pass nothing any more, neither bytes nor ends, and keep all connections open."""
        with self._changed:
            self._is_silent = True

    def await_links(self, count: int, is_so: Callable[[Link], bool]) -> list[Link]:
        """Wait until something is so of a number of connections, and return those."""
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: sum(map(bool, map(is_so, self._links))) >= count, _PATIENCE
            )
            found = [link for link in self._links if is_so(link)]
        assert in_time, f"{len(found)} such connections, not {count}"
        return found

    def close(self) -> None:
        """End all connections, and the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for link in self._links:
                link.shut()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:  # the first of them adds others until it has ended
            thread.join()
        self._socket.close()
        for sock in self._kept:
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _limit(self, role: str, way: str, after: int, *, cuts: bool) -> None:
        with self._changed:
            self._limits[role, way] = after, cuts

    def _begin(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):  # it is shut down at the end
            while True:
                node, _ = self._socket.accept()
                with self._changed:
                    is_on = not (self._is_silent or self._is_closed)
                if is_on and (launcher := self._connected()) is not None:
                    self._begin(self._serve, Link(node, launcher))
                elif is_on:
                    node.close()
                else:
                    self._kept.append(node)

    def _connected(self) -> socket.socket | None:
        try:
            return socket.create_connection(self._launcher, source_address=(self._source, 0))
        except OSError:  # the launcher is gone
            return None

    def _serve(self, link: Link) -> None:
        with self._changed:
            self._links.append(link)
            if self._is_closed:
                link.shut()
        back = threading.Thread(target=self._pass, args=(link, TO_NODE), daemon=True)
        back.start()
        self._pass(link, TO_LAUNCHER)
        back.join()
        link.close()

    def _pass(self, link: Link, way: str) -> None:
        source, sink = link.between(way)
        try:
            while count := self._allowed(link, way):
                piece = source.recv(count)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or not self._is_silent)
                    link.note(way, piece)
                    self._changed.notify_all()
                if not piece:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(piece)
        except OSError:  # one side is gone without having read everything
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or not self._is_silent)
            link.shut()

    def _allowed(self, link: Link, way: str) -> int:
        """Wait until bytes may be passed, and return how many at once; 0 where it has ended."""

        def left() -> int:
            if way == TO_LAUNCHER and not link.role:
                return GREETING_BYTES - link.passed[way]
            after, _ = self._limits.get((link.role, way), (_PIECE_BYTES + link.passed[way], False))
            return min(after - link.passed[way], _PIECE_BYTES)

        with self._changed:
            while left() <= 0 and not self._is_closed:
                if self._limits[link.role, way][1]:
                    link.cut()
                    self._changed.notify_all()
                    return 0
                link.held.add(way)
                self._changed.notify_all()
                self._changed.wait()
            link.held.discard(way)
            return 0 if self._is_closed else left()
