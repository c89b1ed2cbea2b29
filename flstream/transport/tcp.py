"""TCP channels between processes with a shared key, which both sides prove.

Processes of one machine may use a Unix socket in their place, by the same proof.

The side that dialled proves first, so that whoever has no key learns nothing but a random number.
Neither proof can be used again: each covers a number that the other side has just drawn. It keeps
strangers out. What is sent later is neither hidden nor signed: the digests of the protocol find
accidents, and no attacker who changes bytes on the line.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import secrets
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from flstream.errors import (
    ChannelClosedError,
    DeadlineError,
    ProtocolError,
    StreamingError,
    UsageError,
)
from flstream.transport.channel import Channel, Deadline

AUTHENTICATION_SECONDS = 5.0
"""Seconds that a connection has for its proof."""

MOST_PENDING = 64
"""Connections that may be about to prove themselves; beyond that, the oldest one goes."""

UNIX = "unix:"
"""Address of a Unix socket that has a name in no folder; the kernel adds the name."""

KEY_BYTES = PROOF_BYTES = NONCE_BYTES = 32
_MOST_PORT = 65_535
_ROLE_BYTES = 16
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Seconds after which it is looked again whether there is a descriptor for a connection.
_NO_ROOM_SECONDS = 0.1
# magic, version, role, id of the key, the dialler's random number
_GREETING = struct.Struct("<4sB3x16s8s32s")
_MAGIC, _VERSION = b"FLSA", 1


class StartToken(NamedTuple):
    """Secret of two processes, each of which proves to the other that it has it.

    Its text, ``str(token)``, is 64 hexadecimal digits.
    """

    key: bytes  # 256 random bits

    @classmethod
    def new(cls) -> StartToken:
        """Draw a token."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> StartToken:
        """Read a token's text.

        Raises:
            UsageError: It is none.
        """
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise UsageError(
                f"a key has {2 * KEY_BYTES} hexadecimal digits, and this text is none; copy all of "
                "it from where it was made"
            )
        return cls(key)

    @property
    def id(self) -> bytes:
        """Eight bytes that distinguish the token, and reveal nothing of its key."""
        return hashlib.sha256(b"flstream token" + self.key).digest()[:8]

    def proof(self, side: bytes, greeting: bytes | bytearray, answer: bytes | bytearray) -> bytes:
        """Return the proof of the key for a side, ``dials`` or ``accepts``."""
        covered = b"flstream 1 " + side + b"\0" + greeting + answer
        return hmac.new(self.key, covered, hashlib.sha256).digest()

    def __str__(self) -> str:
        return self.key.hex()

    def __repr__(self) -> str:
        return f"StartToken({self.id.hex()})"  # not the secret, which logs would keep


class Admission(NamedTuple):
    """Process that a key admits."""

    token: StartToken
    name: str  # of the process, which does not say it itself
    role: str  # role that its key grants


class TcpListener:
    """Listener for connections from processes with a key, as a context manager.

    Each connection proves itself on a thread of its own, which then ends.

    Args:
        address: Address to bind, ``HOST:PORT``; port 0 is a free one. Not all addresses at once.
            Or :data:`UNIX`, for processes of this machine.
        on_connection: Called with each channel to a process that has proven itself, one after
            another; it may not take long.

    Attributes:
        address: The address, with its port.
        strangers: Number of connections that were closed because they proved nothing.

    Raises:
        UsageError: The address is none, is not one of this machine, or is in use.
    """

    def __init__(self, address: str, on_connection: Callable[[Channel, Admission], None]) -> None:
        self.strangers = 0
        self._on_connection = on_connection
        self._admissions: dict[bytes, Admission] = {}
        self._pending: dict[Channel, None] = {}  # oldest first
        # Guards the two above, and calls one after another, which may admit and dismiss.
        self._lock = threading.RLock()
        self._is_closed = False
        try:
            self._socket = _listening(address)
        except (OSError, UnicodeError) as error:  # a name that is too long
            flaw = error.strerror if isinstance(error, OSError) else "it is no name of a host"
            raise UsageError(f"{address} cannot be listened on: {flaw}") from error
        self.address = _text_of(self._socket.getsockname())
        self._thread = threading.Thread(target=self._accept_all, name="tcp-listener", daemon=True)
        self._thread.start()

    def admit(
        self, name: str, role: str = "receiver", token: StartToken | None = None
    ) -> StartToken:
        """Admit a process with a key, as often as it connects.

        Args:
            name: Name of the process.
            role: Role that the key grants, at most 16 bytes.
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
        with self._lock:
            self._admissions[token.id] = Admission(token, name, role)
        return token

    def dismiss(self, token: StartToken) -> None:
        """Admit nobody with a key from now on; existing connections stay."""
        with self._lock:
            self._admissions.pop(token.id, None)

    def close(self) -> None:
        """Accept no further connection; existing ones stay."""
        with self._lock:
            self._is_closed = True
            for channel in self._pending:
                channel.shut()
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends the waiting for connections
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept_all(self) -> None:
        with self._socket:
            while not self._is_closed:
                try:
                    channel = _channel(self._socket.accept()[0], "a stranger")
                except OSError as error:
                    if error.errno in _NO_ROOM:
                        self._make_room(0)
                        # Nothing tells when a descriptor becomes free.
                        time.sleep(_NO_ROOM_SECONDS)
                    continue  # otherwise it has hung up already, or this is closed
                self._make_room(MOST_PENDING - 1)
                with self._lock:
                    if self._is_closed:
                        channel.close()
                        break
                    self._pending[channel] = None
                threading.Thread(
                    target=self._meet, args=(channel,), name="tcp-handshake", daemon=True
                ).start()

    def _make_room(self, most: int) -> None:
        """Drop the oldest unproven connections, if there are many."""
        with self._lock:
            while len(self._pending) > most:
                oldest = next(iter(self._pending))
                del self._pending[oldest]
                self.strangers += 1
                oldest.shut()

    def _meet(self, channel: Channel) -> None:
        """Admit a connection that proves itself; close any other silently."""
        admission = None
        with suppress(StreamingError):
            admission = self._admitted(channel)
        with self._lock:
            was_given_up = channel not in self._pending
            self._pending.pop(channel, None)
            if admission is None or was_given_up or self._is_closed:
                self.strangers += not was_given_up
                channel.close()
                return
            channel.peer = admission.name
            try:
                self._on_connection(channel, admission)
            except Exception:  # of its owner, or of a peer that is gone: others are still let in
                traceback.print_exc()
                channel.close()

    def _admitted(self, channel: Channel) -> Admission | None:
        """Return the process at the other end, if it proves that it has the key."""
        deadline = Deadline(AUTHENTICATION_SECONDS)
        greeting, proof = bytearray(_GREETING.size), bytearray(PROOF_BYTES)
        channel.receive([memoryview(greeting)], deadline)
        magic, version, role, token_id, _ = _GREETING.unpack(greeting)
        with self._lock:
            admission = self._admissions.get(token_id)
        if (magic, version) != (_MAGIC, _VERSION) or admission is None:
            return None
        if role.rstrip(b"\0") != admission.role.encode():
            return None
        answer, token = secrets.token_bytes(NONCE_BYTES), admission.token
        channel.send([memoryview(answer)], deadline)
        channel.receive([memoryview(proof)], deadline)
        if not hmac.compare_digest(proof, token.proof(b"dials", greeting, answer)):
            return None
        if self._admissions.get(token_id) is not admission:
            return None  # dismissed meanwhile
        channel.send([memoryview(token.proof(b"accepts", greeting, answer))], deadline)
        return admission


def dial(address: str, token: StartToken, peer: str, role: str = "receiver") -> Channel:
    """Connect to a listener; both sides prove that they have the key.

    Args:
        address: Address of the listener.
        token: The key that admits this process.
        peer: Name of the process at the other end, for messages.
        role: Role that this process asks for.

    Raises:
        UsageError: The address is none.
        ChannelClosedError: Nobody listens there, or who does has not the key.
    """
    name = f"{peer} at {address}"
    try:
        sock = _connected(address)
    except (OSError, UnicodeError) as error:
        flaw = getattr(error, "strerror", None) or error
        raise ChannelClosedError(
            f"{name} cannot be reached: {flaw}; is it up, and is this its address?"
        ) from error
    channel, deadline = _channel(sock, name), Deadline(AUTHENTICATION_SECONDS)
    nonce = secrets.token_bytes(NONCE_BYTES)
    greeting = _GREETING.pack(_MAGIC, _VERSION, role.encode(), token.id, nonce)
    answer, theirs = bytearray(NONCE_BYTES), bytearray(PROOF_BYTES)
    try:
        channel.send([memoryview(greeting)], deadline)
        channel.receive([memoryview(answer)], deadline)
        channel.send([memoryview(token.proof(b"dials", greeting, answer))], deadline)
        channel.receive([memoryview(theirs)], deadline)
        if not hmac.compare_digest(theirs, token.proof(b"accepts", greeting, answer)):
            raise ProtocolError(f"the proof of {name} is false")
    except StreamingError as error:
        channel.close()
        flaw = "closed the connection before it was open; it has another key or role"
        if isinstance(error, DeadlineError):
            flaw = f"did not answer within {AUTHENTICATION_SECONDS:g} s; it hangs, or is no sender"
        elif isinstance(error, ProtocolError):
            flaw = "has not the key, so it is somebody else"
        raise ChannelClosedError(f"{name} {flaw}") from error
    channel.peer = peer
    return channel


def _listening(address: str) -> socket.socket:
    """Return a listening socket."""
    if address == UNIX:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("")  # of the abstract names, the kernel takes a free one
        sock.listen(MOST_PENDING)
        return sock
    host, port = _host_and_port(address)
    family, _, _, _, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if ipaddress.ip_address(bound[0]).is_unspecified:
        raise UsageError(
            f"{address} stands for every address of this machine; name the one under which the "
            "others reach it"
        )
    return socket.create_server(bound[:2], family=family, backlog=MOST_PENDING)


def _connected(address: str) -> socket.socket:
    """Return a socket that is connected to a listener's."""
    if not address.startswith(UNIX):
        return socket.create_connection(_host_and_port(address), AUTHENTICATION_SECONDS)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(AUTHENTICATION_SECONDS)
    try:
        sock.connect("\0" + address.removeprefix(UNIX))
    except OSError:
        sock.close()
        raise
    return sock


def _channel(sock: socket.socket, peer: str) -> Channel:
    return Channel(sock, peer, beats=sock.family != socket.AF_UNIX)


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = str(address).rpartition(":")
    if not colon or host in ("", "*") or not port.isdecimal() or int(port) > _MOST_PORT:
        raise UsageError(f"{address!r} is no address; give HOST:PORT, such as 127.0.0.1:7707")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _text_of(name: bytes | tuple[str, int]) -> str:
    if isinstance(name, bytes):
        return UNIX + name[1:].decode()
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
