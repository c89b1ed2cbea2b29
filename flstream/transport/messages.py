"""Small typed messages over a channel: msgpack behind four bytes of length."""

from __future__ import annotations

import select
from typing import Any, Generic, TypeVar

import msgspec

from flstream.errors import ProtocolError
from flstream.transport.channel import AbortSignal, Channel, Deadline

_LENGTH_BYTES = 4
# Metrics and tracebacks are small; anything near this is a mistake.
_MAX_BYTES = 16 << 20
# What msgspec raises for bytes that are no message: for text that is not UTF-8 and for arrays
# nested without end it lets Python's own errors through.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()

# How long a living peer may take to make room for a message, or to send the rest of one.
PATIENCE = 60.0

MessageT = TypeVar("MessageT")


class MessageChannel(Generic[MessageT]):
    """Sends and receives whole messages.

    Args:
        channel: what carries the bytes.
        peer: who is at the other end.
        kinds: the union of message types that may arrive, which is ``MessageT``.
    """

    def __init__(self, channel: Channel, peer: str, kinds: Any) -> None:
        self.peer = peer
        self._channel = channel
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(kinds)

    def fileno(self) -> int:
        """The descriptor to select on."""
        return self._channel.fileno()

    def has_input(self) -> bool:
        """Whether a message, or the end of the channel, is there to be received."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to be received; False if nothing is after ``seconds``."""
        return self._channel.wait(seconds)

    def send(self, message: msgspec.Struct, timeout: float | None = PATIENCE) -> None:
        """Send a message.

        Raises:
            StreamingError: the peer is gone, or takes nothing within ``timeout`` seconds.
        """
        payload = _encoder.encode(message)
        length = len(payload).to_bytes(_LENGTH_BYTES, "little")
        self._channel.send([memoryview(length + payload)], Deadline(timeout))

    def receive(self, timeout: float | None = None, abort: AbortSignal | None = None) -> MessageT:
        """Wait for a message.

        Args:
            timeout: seconds; None waits for ever.
            abort: raised to give up waiting.

        Raises:
            StreamingError: the peer is gone, is silent for too long, or sends something else.
        """
        deadline = Deadline(timeout)
        length = bytearray(_LENGTH_BYTES)
        self._channel.receive([memoryview(length)], deadline, abort)
        size = int.from_bytes(length, "little")
        if size > _MAX_BYTES:
            raise ProtocolError(f"{self.peer} sent a message of {size} bytes; {_MAX_BYTES} is most")
        payload = bytearray(size)
        self._channel.receive([memoryview(payload)], deadline, abort)
        try:
            return self._decoder.decode(payload)
        except UNREADABLE as error:
            raise ProtocolError(f"{self.peer} sent an unreadable message: {error}") from error

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
