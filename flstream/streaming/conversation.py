"""What a receiver says to the sender of one ref, and what it hears beside frames."""

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

# A sender that repeats itself without end is given up after this many bytes beyond the body.
_MOST_REPEATED = 256 << 20

ReplyT = TypeVar("ReplyT", Opened, Digested, Closed)


class Conversation:
    """The messages of one download.

    Args:
        receiver: whose channel they travel on.
        token: of the ref.
        settings: timeouts.
    """

    def __init__(self, receiver: Receiver, token: bytes, settings: StreamSettings) -> None:
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._repeated = 0
        self._most_repeated = _MOST_REPEATED

    def allow(self, nbytes: int) -> None:
        """Let the sender repeat so many bytes more: a body of that length is under way."""
        self._most_repeated += nbytes

    def ask(
        self,
        request: Request,
        answer: type[ReplyT],
        patience: Patience,
        *,
        unasked: bool = False,
    ) -> ReplyT:
        """Send a request, again as long as nothing is heard, and wait for its one answer.

        Args:
            request: what to send.
            answer: what answers it.
            patience: how long to wait.
            unasked: the answer is expected to come by itself; the request is sent only if nothing
                is heard.

        Raises:
            RefusedError: the sender says no.
            DeadlineError: the patience is at its end.
            ProtocolError: the sender goes on saying other things.
        """

        def wait() -> bool:
            heard = patience.wait(
                self._settings.probe_after, lambda: f"an answer to {type(request).__name__}"
            )
            if not heard:
                self.send(request)
            return heard

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
        """Count a packet that brings no chunk; of one that sends them without end, no more."""
        self._repeated += HEADER_BYTES + length
        if self._repeated > self._most_repeated:
            raise ProtocolError(
                f"{self._receiver.peer} repeats itself: {self._repeated} bytes to no use"
            )

    def message(self, header: Header, wait: Wait) -> Reply | None:
        """The message behind a header; None if it is damaged, not one, or of another download."""
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
