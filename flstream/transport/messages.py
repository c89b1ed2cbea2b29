"""Small typed messages over a channel: msgpack after four bytes with its length."""

from __future__ import annotations

import socket
from typing import Any, Generic, TypeVar

import msgspec

from flstream.errors import ProtocolError
from flstream.transport.channel import AbortSignal, Channel, Deadline

_LENGTH_BYTES = 4
# Metrics and tracebacks are small; a message near this limit is a mistake.
_MAX_BYTES = 16 << 20
# Most bytes that are received in one call, of however many messages.
_ROOM_BYTES = 8 << 10
# Errors of msgspec for bytes that are not a message: for text that is not UTF-8 and for deeply
# nested arrays, it raises Python's own.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()

# Seconds for a living peer to make room for a message, or to send the rest of one.
PATIENCE = 60.0

MessageT = TypeVar("MessageT")


class MessageChannel(Generic[MessageT]):
    """Channel of whole messages.

    Args:
        sock: Socket of this end.
        peer: Name of the process at the other end, for messages of errors.
        kinds: Union of the message types that may arrive, equal to ``MessageT``.
    """

    def __init__(self, sock: socket.socket, peer: str, kinds: Any) -> None:
        self._channel = Channel(sock, peer)
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(kinds)
        # What has come with the messages before: many small ones come in one call.
        self._arrived = bytearray()

    def has_input(self, seconds: float = 0.0) -> bool:
        """Wait ``seconds`` at most; return whether there is input, or the end."""
        return bool(self._arrived) or self._channel.wait(Deadline(seconds))

    def send(self, *messages: msgspec.Struct, timeout: float | None = PATIENCE) -> None:
        """Send messages, all at once.

        Args:
            messages: The messages.
            timeout: Seconds for the peer to make room; None is without limit.

        Raises:
            StreamingError: The peer is gone, or takes nothing within ``timeout`` seconds.
        """
        payloads = [_encoder.encode(message) for message in messages]
        framed = b"".join(
            len(payload).to_bytes(_LENGTH_BYTES, "little") + payload for payload in payloads
        )
        self._channel.send([memoryview(framed)], Deadline(timeout))

    def receive(self, timeout: float | None = None, abort: AbortSignal | None = None) -> MessageT:
        """Wait for a message, and return it.

        Args:
            timeout: Seconds to wait; None is without limit.
            abort: Flag that ends the waiting.

        Raises:
            StreamingError: The peer is gone, is silent for too long, or sent something else.
        """
        deadline, peer = Deadline(timeout), self._channel.peer
        size = int.from_bytes(self._take(_LENGTH_BYTES, deadline, abort), "little")
        if size > _MAX_BYTES:
            raise ProtocolError(f"{peer} sent a message of {size} bytes; {_MAX_BYTES} is most")
        payload = self._take(size, deadline, abort)
        try:
            return self._decoder.decode(payload)
        except UNREADABLE as error:
            raise ProtocolError(f"{peer} sent an unreadable message: {error}") from error

    def _take(self, size: int, deadline: Deadline, abort: AbortSignal | None) -> bytearray:
        arrived = self._arrived
        while len(arrived) < size:
            room = memoryview(bytearray(_ROOM_BYTES))
            arrived += room[: self._channel.receive_any([room], deadline, abort)]
        taken = arrived[:size]
        del arrived[:size]
        return taken

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
