"""Messages of a receiver to the sender of one ref, and the sender's messages beside frames."""

from __future__ import annotations

from typing import TypeVar

from flstream.errors import ProtocolError, RefusedError
from flstream.model.layout import MAX_HEADER_BYTES
from flstream.streaming.packets import Wait
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
from flstream.streaming.wire import (
    HEADER_BYTES,
    MESSAGE,
    PUSHED,
    Closed,
    Digested,
    Header,
    Opened,
    Refused,
    Reply,
    Request,
    decode_reply,
)

# Bytes beyond the body after which a sender that keeps repeating itself is given up.
_MOST_REPEATED = 256 << 20

ReplyT = TypeVar("ReplyT", Opened, Digested, Closed)


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

        def wait() -> bool:
            has_input = patience.wait(
                self._settings.probe_after, lambda: f"an answer to {type(request).__name__}"
            )
            if not has_input:
                self.send(request)
            return has_input

        numbers = {request.request}
        if unasked:
            numbers.add(PUSHED)
        else:
            self.send(request)
        while True:
            header = self._receiver.packets.header(wait)
            reply = self.message(header, wait)
            if reply is None or reply.request not in numbers:
                continue
            if isinstance(reply, Refused):
                raise RefusedError(f"{self._receiver.peer} refused: {reply.reason}")
            if isinstance(reply, answer):
                return reply

    def count_useless(self, length: int) -> None:
        """Count the bytes of a packet that brings no chunk.

        Raises:
            ProtocolError: The sender keeps sending such packets.
        """
        self._repeated += HEADER_BYTES + length
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
        if header.kind != MESSAGE or header.length > MAX_HEADER_BYTES:
            self._receiver.packets.skip(header.length, wait)
            return None
        payload = memoryview(bytearray(header.length))
        digest = self._receiver.packets.payload([payload], wait)
        if header.token != self._token or digest != header.digest:
            return None
        return decode_reply(bytes(payload), self._receiver.peer)

    def send(self, request: Request) -> None:
        """Send a request."""
        self._receiver.send(request, self._settings.request_timeout)
