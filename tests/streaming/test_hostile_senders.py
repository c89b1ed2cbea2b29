"""Senders that fall silent, send nonsense or go on without end give typed errors only."""

import threading

import pytest
from asking import MODEL
from harness import QUICK, fetch

from flstream.errors import (
    AbortedError,
    FlstreamError,
    ProtocolError,
)
from flstream.model.memory import MemoryBody
from flstream.streaming import exchange
from flstream.streaming.receiver import Receiver
from flstream.streaming.wire import (
    FRAME,
    VERSION,
    Closed,
    Header,
    Hello,
    Opened,
    Pong,
    Refused,
    digest_of,
    pack_message,
)
from flstream.transport.channel import Signal
from flstream.transport.sockets import pipe


def test_an_abort_wakes_a_receiver_that_waits():
    ours, theirs = pipe("server", "site-1")
    abort = Signal()
    raised: list[FlstreamError] = []

    def wait() -> None:
        try:
            fetch(Receiver(theirs, "server", abort), bytes(16), QUICK)
        except FlstreamError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    abort.set()
    waiter.join(20)
    assert not waiter.is_alive()
    assert isinstance(raised[0], AbortedError)
    for end in (ours, theirs, abort):
        end.close()


def opened(token: bytes, layout: bytes) -> bytes:
    return GREETING + pack_message(Opened(1, layout), token)


GREETING = pack_message(Hello(VERSION))
LAYOUT = MemoryBody.of(MODEL).layout.plain_header[8:]
TOKEN = bytes(range(16))
DATA = bytes(4096)


def frame(request: int = 2, start: int = 0, data: bytes = DATA, token: bytes = TOKEN) -> bytes:
    return Header(FRAME, request, token, start, len(data), digest_of([data])).pack() + data


class Endless:
    """A channel on which one thing comes over and over, after what comes first."""

    def __init__(self, first: bytes, again: bytes) -> None:
        self._data = first
        self._again = again * (1 + (64 << 10) // len(again))

    def receive_some(self, views):
        count = 0
        for view in views:
            while len(self._data) < len(view):
                self._data += self._again
            view[:] = self._data[: len(view)]
            self._data = self._data[len(view) :]
            count += len(view)
        return count

    beats = False

    def send(self, views, deadline):
        pass

    def close(self):
        pass

    def wait(self, seconds, abort=None):
        return True


ENDLESS = {
    "a frame of a request that is over": frame(request=1),
    "a frame of a number not asked for": frame(request=99, start=4096),
    "a frame of another token": frame(token=bytes(16)),
    "an empty frame of another token": frame(token=bytes(16), data=b""),
    "what it opened": pack_message(Opened(1, LAYOUT), TOKEN),
    "a refusal of something else": pack_message(Refused(0, "no"), TOKEN),
    "what waits": pack_message(Pong(9, [2, 3]), TOKEN),
    "a message of another token": pack_message(Closed(2), bytes(16)),
}


@pytest.mark.parametrize("again", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize(
    "first", [GREETING, opened(TOKEN, LAYOUT) + frame()], ids=["closed", "open"]
)
def test_a_sender_that_goes_on_without_end_is_given_up(first, again, monkeypatch):
    monkeypatch.setattr(exchange, "_MOST_REPEATED", 1 << 18)
    if first is GREETING and again is ENDLESS["what it opened"]:
        first = opened(TOKEN, LAYOUT)
    receiver = Receiver(Endless(first, again), "server")
    with pytest.raises(ProtocolError, match="server repeats itself"):
        fetch(receiver, TOKEN)
