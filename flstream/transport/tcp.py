"""TCP channels between processes that share a key: see :mod:`flstream.transport.authentication`."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from flstream.errors import ChannelClosedError, DeadlineError, StreamingError, UsageError
from flstream.transport.authentication import (
    GREETING_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Greeting,
    StartToken,
)
from flstream.transport.channel import Deadline, Signal
from flstream.transport.sockets import SocketChannel

AUTHENTICATION_SECONDS = 5.0
"""Seconds that a connection has for its proof."""

MOST_PENDING = 64
"""Connections that may be about to prove themselves; beyond that, the oldest one goes."""

_MOST_PORT = 65_535
_ROLE_BYTES = 16
# Seconds after which it is looked again whether there is a descriptor for a connection.
_NO_ROOM_SECONDS = 0.1
# A dead link without traffic is known after 4 + 3 * 2 seconds. There is no TCP_USER_TIMEOUT: it
# would also end a sound connection whose receiver takes nothing for a while.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Admission(NamedTuple):
    """Who may come with a key.

    Attributes:
        token: The key.
        name: Name of the process, which it does not say itself.
        role: What it may be.
    """

    token: StartToken
    name: str
    role: str


OnConnection = Callable[[SocketChannel, Admission], None]
"""Function called with a channel to a process that has proven itself; it may not take long."""


@dataclass(eq=False)
class _Pending:
    """A connection that has not proven itself yet."""

    sock: socket.socket
    handshake: Generator[int, bytes, Admission | None]
    wanted: int
    until: float
    received: bytearray = field(default_factory=bytearray)


class TcpListener:
    """Accepts connections from processes that have a key. Use it as a context manager.

    Args:
        address: Address to bind, ``HOST:PORT``; port 0 is a free one. Not all addresses at once.
        on_connection: Called with each channel, on the listener's thread.
        run: What both sides are part of; a key of one run opens no other.

    Attributes:
        address: The address, with its port.
        strangers: Number of connections that were closed because they proved nothing.

    Raises:
        UsageError: The address is none, is not one of this machine, or is in use.
    """

    def __init__(self, address: str, on_connection: OnConnection, run: str = "") -> None:
        self.strangers = 0
        self._on_connection = on_connection
        self._run = run
        self._admissions: dict[bytes, Admission] = {}
        self._pending: dict[_Pending, None] = {}  # oldest first
        host, port = _host_and_port(address)
        try:
            family, _, _, _, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            if ipaddress.ip_address(bound[0]).is_unspecified:
                raise UsageError(
                    f"{address} stands for every address of this machine; name the one under which "
                    "the others reach it"
                )
            self._socket = socket.create_server(bound[:2], family=family, backlog=MOST_PENDING)
        except (OSError, UnicodeError) as error:  # a name that is too long
            flaw = error.strerror if isinstance(error, OSError) else "it is no name of a host"
            raise UsageError(f"{address} cannot be listened on: {flaw}") from error
        self._socket.setblocking(False)
        self.address = _text_of(self._socket.getsockname())
        self._stop = Signal()
        self._thread = threading.Thread(target=self._serve, name="tcp-listener", daemon=True)
        self._thread.start()

    def admit(
        self, name: str, role: str = "receiver", token: StartToken | None = None
    ) -> StartToken:
        """Let a process in that comes with a key, as often as it connects.

        Args:
            name: Name of the process.
            role: What it may be, at most 16 bytes.
            token: The key; None for a new one.

        Returns:
            The key, which the process needs.

        Raises:
            ValueError: The name is none, or the role is too long.
        """
        if not name or not isinstance(name, str):
            raise ValueError(f"name is {name!r}; give that of the process, as offers have it")
        if not 0 < len(role.encode()) <= _ROLE_BYTES:
            raise ValueError(f"role is {role!r}; give 1 to {_ROLE_BYTES} bytes")
        token = token or StartToken.new()
        self._admissions[token.id] = Admission(token, name, role)
        return token

    def dismiss(self, token: StartToken) -> None:
        """Let nobody in with a key any more; connections that it opened stay."""
        self._admissions.pop(token.id, None)

    def close(self) -> None:
        """Accept nothing more. Connections that were accepted stay."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self._stop.close()

    def abandon(self) -> None:
        """Close the descriptor alone, in a forked child, which would keep the address in use."""
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._socket:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stop, selectors.EVENT_READ)
            while not self._stop.is_set():
                oldest = next(iter(self._pending), None)
                seconds = None if oldest is None else max(oldest.until - time.monotonic(), 0.0)
                for key, _ in selector.select(seconds):
                    if key.fileobj is self._socket:
                        self._accept(selector)
                    elif key.data in self._pending:
                        self._go_on(selector, key.data)
                now = time.monotonic()
                for each in [each for each in self._pending if each.until <= now]:
                    self._close(selector, each)
            for each in self._pending:
                each.sock.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        if len(self._pending) >= MOST_PENDING:
            self._close(selector, next(iter(self._pending)))
        try:
            sock, _ = self._socket.accept()
        except OSError:  # gone again, or there is no descriptor left: then an older one makes room
            if self._pending:
                self._close(selector, next(iter(self._pending)))
            else:  # the selector would return at once, over and over
                time.sleep(_NO_ROOM_SECONDS)
            return
        sock.setblocking(False)
        handshake = self._handshake(sock)
        until = time.monotonic() + AUTHENTICATION_SECONDS
        pending = _Pending(sock, handshake, next(handshake), until)
        self._pending[pending] = None
        selector.register(sock, selectors.EVENT_READ, pending)

    def _go_on(self, selector: selectors.BaseSelector, pending: _Pending) -> None:
        """Take what a connection has sent, which is never more than is due of it."""
        try:
            piece = pending.sock.recv(pending.wanted - len(pending.received))
            pending.received += piece
            if piece and len(pending.received) < pending.wanted:
                return
            admission = None
            if piece:
                received, pending.received = bytes(pending.received), bytearray()
                pending.wanted = pending.handshake.send(received)
                return
        except StopIteration as end:
            admission = end.value
        except OSError:
            admission = None
        if admission is None:
            self._close(selector, pending)
            return
        del self._pending[pending]
        selector.unregister(pending.sock)
        try:
            self._on_connection(_channel(pending.sock, admission.name), admission)
        except Exception:  # of its owner, or of a peer that is gone: others are still let in
            traceback.print_exc()
            pending.sock.close()

    def _handshake(self, sock: socket.socket) -> Generator[int, bytes, Admission | None]:
        """Yield how many bytes are due next, are sent them, and return who it is, if anybody."""
        greeting = Greeting.parse((yield GREETING_BYTES))
        admission = None if greeting is None else self._admissions.get(greeting.token_id)
        if greeting is None or admission is None or greeting.role != admission.role.encode():
            return None
        answer = secrets.token_bytes(NONCE_BYTES)
        sock.send(answer)
        theirs = greeting.proof(b"dials", admission.token, answer, self._run)
        if not hmac.compare_digest((yield PROOF_BYTES), theirs):
            return None
        if self._admissions.get(greeting.token_id) is not admission:
            return None  # dismissed meanwhile
        sock.send(greeting.proof(b"accepts", admission.token, answer, self._run))
        return admission

    def _close(self, selector: selectors.BaseSelector, pending: _Pending) -> None:
        """Close a connection that proved nothing, without a word."""
        self.strangers += 1
        del self._pending[pending]
        selector.unregister(pending.sock)
        pending.sock.close()


def dial(
    address: str, token: StartToken, peer: str, role: str = "receiver", run: str = ""
) -> SocketChannel:
    """Connect to a listener, and prove to each other that both have the key.

    Args:
        address: Address of the listener, ``HOST:PORT``.
        token: The key that admits this process.
        peer: Name of the process at the other end, for messages.
        role: What this process is to be there.
        run: What both sides are part of.

    Raises:
        UsageError: The address is none.
        ChannelClosedError: Nobody listens there, or who does has not the key.
    """
    host_and_port, name = _host_and_port(address), f"{peer} at {address}"
    try:
        sock = socket.create_connection(host_and_port, AUTHENTICATION_SECONDS)
    except (OSError, UnicodeError) as error:
        flaw = getattr(error, "strerror", None) or error
        raise ChannelClosedError(
            f"{name} cannot be reached: {flaw}; is it up, and is this its address?"
        ) from error
    channel, deadline = _channel(sock, name), Deadline(AUTHENTICATION_SECONDS)
    greeting = Greeting.new(role, token)
    answer, theirs = bytearray(NONCE_BYTES), bytearray(PROOF_BYTES)
    try:
        channel.send([memoryview(greeting.pack())], deadline)
        channel.receive([memoryview(answer)], deadline)
        proof = greeting.proof(b"dials", token, bytes(answer), run)
        channel.send([memoryview(proof)], deadline)
        channel.receive([memoryview(theirs)], deadline)
    except DeadlineError as error:
        channel.close()
        raise ChannelClosedError(
            f"{name} did not answer within {AUTHENTICATION_SECONDS:g} s; it hangs, or is no sender"
        ) from error
    except StreamingError as error:
        channel.close()
        raise ChannelClosedError(
            f"{name} closed the connection before it was open; it has another key, or expects "
            "another role or run"
        ) from error
    if not hmac.compare_digest(theirs, greeting.proof(b"accepts", token, bytes(answer), run)):
        channel.close()
        raise ChannelClosedError(f"what answers at {address} has not the key of {peer}")
    channel.peer = peer
    return channel


def _channel(sock: socket.socket, peer: str) -> SocketChannel:
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)
    # Over the loopback sendfile takes longer than a copy does: measured, 2.0 against 3.5 GB/s.
    is_local = ipaddress.ip_address(sock.getsockname()[0]).is_loopback
    return SocketChannel(sock, peer, lends_files=not is_local, beats=True)


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = str(address).rpartition(":")
    if not colon or host in ("", "*") or not port.isdecimal() or int(port) > _MOST_PORT:
        raise UsageError(f"{address!r} is no address; give HOST:PORT, such as 127.0.0.1:7707")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _text_of(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
