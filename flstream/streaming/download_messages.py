"""Messages of a receiver to the sender of one ref, and the sender's messages beside frames."""

from __future__ import annotations

from typing import TypeVar

from flstream.errors import ProtocolError, RefusedError
from flstream.streaming.packets import Wait
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
from flstream.streaming.wire import (
    MESSAGE,
    PUSHED,
    Closed,
    Digested,
    Header,
    Opened,
    Refused,
    Reply,
    Request,
    Waiting,
    decode_reply,
)
from flstream.text import quotable

# Bytes of an answer to an open that are not the layout.
_BESIDE_LAYOUT = 1 << 10
# Bytes as which a packet counts beside its payload, however short: to read it takes as long.
_PACKET_COST = 1 << 10
# Bytes beyond the body after which a sender that keeps repeating itself is given up.
_MOST_REPEATED = 256 << 20

ReplyT = TypeVar("ReplyT", Opened, Digested, Waiting, Closed)


class DownloadMessages:
    """The messages of one download.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
    """

    def __init__(self, receiver: Receiver, token: bytes, settings: StreamSettings) -> None:
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._repeated = 0
        self._most_repeated = _MOST_REPEATED

    def allow(self, nbytes: int) -> None:
        """Allow the sender to repeat ``nbytes`` more: a body of that length is being sent."""
        self._most_repeated += nbytes

    def ask(
        self,
        request: Request,
        answer: type[ReplyT],
        patience: Patience,
        *,
        unasked: bool = False,
    ) -> ReplyT:
        """Send a request, repeatedly while the sender is silent, and wait for its one answer.

        Args:
            request: Request to send.
            answer: Type of the answer.
            patience: Time to wait.
            unasked: Whether the answer is expected without a request, which is then sent only if
                the
            sender is silent.

        Raises:
            RefusedError: The sender refused the request.
            DeadlineError: The time is used up.
            ProtocolError: The sender keeps sending other messages.
        """

        def due() -> str:
            return f"an answer to {type(request).__name__}"

        def wait() -> bool:
            has_input = patience.wait(self._settings.probe_after, due)
            if not has_input:
                self.send(request)
            return has_input

        numbers = {request.request}
        if unasked:
            numbers.add(PUSHED)
        else:
            self.send(request)
        with patience:
            while True:
                reply = self.message(self.header(wait), wait)
                if reply is not None and reply.request in numbers:
                    if isinstance(reply, Refused):
                        raise self.refusal(reply)
                    if isinstance(reply, answer):
                        return reply
                patience.expect_left(due)

    def header(self, wait: Wait) -> Header:
        """Return the header of the next packet, and count what came before it that is none.

        Raises:
            ProtocolError: The sender sends too much that is of no use.
        """
        packets = self._receiver.packets
        before = packets.junk
        header = packets.header(wait)
        if packets.junk > before:
            self.count_useless(packets.junk - before)
        return header

    def refusal(self, refused: Refused) -> RefusedError:
        """Make the error for a refusal."""
        return RefusedError(f"{self._receiver.peer} refused: {quotable(refused.reason)}")

    def count_useless(self, length: int) -> None:
        """Count the bytes of a packet that brings no chunk.

        Raises:
            ProtocolError: The sender keeps sending such packets.
        """
        self._repeated += _PACKET_COST + length
        if self._repeated > self._most_repeated:
            raise ProtocolError(
                f"{self._receiver.peer} repeats itself: {self._repeated} bytes to no use"
            )

    def message(self, header: Header, wait: Wait) -> Reply | None:
        """Read the message behind a header.

        Returns:
            The message; None if it is damaged, invalid, or of another download.
        """
        self.count_useless(header.length)
        most = self._receiver.limits.layout_bytes + _BESIDE_LAYOUT
        if header.kind == MESSAGE and header.token == self._token and header.length > most:
            raise ProtocolError(
                f"{self._receiver.peer} sent a message of {header.length} bytes, and {most} are "
                "taken here at most (Limits.layout_bytes)"
            )
        if header.kind != MESSAGE or header.length > most:
            self._receiver.packets.skip(header.length, wait)
            return None
        payload = memoryview(bytearray(header.length))
        digest = self._receiver.packets.payload([payload], wait)
        if header.token != self._token or digest != header.digest:
            return None
        return decode_reply(payload, self._receiver.peer)

    def send(self, request: Request) -> None:
        """Send a request."""
        self._receiver.send(request, self._settings.request_timeout)
