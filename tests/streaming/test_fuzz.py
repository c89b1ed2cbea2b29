"""A hundred thousand malformed packets each way, over fresh connections.

There are typed errors alone, memory is bounded, and the service goes on.
"""

import random
import threading
from contextlib import suppress

import numpy as np
import psutil
import pytest
from harness import fetch, open_harness

from flstream.errors import ChannelClosedError, StreamingError
from flstream.model.memory import MemoryBody
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.wire import (
    FRAME,
    MESSAGE,
    PUSHED,
    VERSION,
    Close,
    Closed,
    Fetch,
    Header,
    Hello,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    digest_of,
    pack_message,
)
from flstream.transport.channel import Deadline

PACKETS = 100_000
BATCH = 5
MODEL = MemoryBody.of({"w": np.arange(40_000, dtype=np.float32)})
NUMBERS = (0, 1, 15, 16, 17, 4096, 65_535, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)


def number(rng):
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(2**40)


def request(rng, token):
    """A request that is sound as a message and wrong as a request, most of the time."""
    signed = rng.choice((-1, 1, 1, 1))
    match rng.randrange(4):
        case 0:
            eager = rng.choice((0, 0, signed * number(rng) % 2**63))
            return Open(token, rng.randrange(2**32), eager, number(rng) % 2**63)
        case 1:
            numbers = [signed * number(rng) % 2**63 for _ in range(3)]
            return Fetch(token, rng.randrange(2**32), *numbers, rng.random() < 0.5)
        case 2:
            return Ping(token, rng.randrange(2**32))
        case _:
            return Close(rng.randbytes(16), rng.randrange(2**32), rng.random() < 0.5, "no")


def reply(rng, layout):
    match rng.randrange(4):
        case 0:
            told = rng.choice((layout, layout[:-9], rng.randbytes(60)))
            return Opened(rng.randrange(9), told, number(rng) % 2**63, number(rng) % 2**63)
        case 1:
            return Refused(rng.randrange(2**32), "x" * rng.randrange(99))
        case 2:
            return Pong(rng.randrange(9), [rng.randrange(9) for _ in range(rng.randrange(9))])
        case _:
            return Closed(rng.randrange(9))


def malformed(rng, token, message):
    """A packet that is damaged, forged, misplaced or no packet at all."""
    token = rng.choice((token, token, bytes(16), rng.randbytes(16)))
    whole = pack_message(message, token)
    match rng.randrange(7):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            return bytes(damaged)
        case 2:
            return whole[: rng.randrange(len(whole))]
        case 3:
            return whole * 2
        case 4:
            payload = rng.randbytes(rng.randrange(120))
            digest = digest_of([payload])
            return Header(MESSAGE, 1, token, number(rng), len(payload), digest).pack() + payload
        case 5:
            payload = rng.randbytes(rng.choice((0, 16, 4096)))
            digest = rng.choice((0, digest_of([payload])))
            return Header(FRAME, 3, token, number(rng), len(payload), digest).pack() + payload
        case _:
            return whole


def read_away(channel, stop):
    """Take in what the service answers, so that its answers never stop it."""
    scratch = memoryview(bytearray(1 << 16))
    while not stop.is_set():
        if channel.wait(0.02):
            try:
                channel.receive_some([scratch])
            except StreamingError:
                return


@pytest.mark.nightly
def test_a_service_goes_on_after_a_hundred_thousand_malformed_requests():
    rng = random.Random("service")
    with open_harness() as harness:
        fetch(harness.receiver("victim"), harness.service.offer(MODEL, ["victim"]).token)
        ref = harness.service.offer(MODEL, ["site-1", "hostile"], push=StreamSettings(4096, 16384))
        before = psutil.Process().memory_info().rss
        sent = 0
        while sent < PACKETS:  # a few each, since a channel ends with the first that is malformed
            channel, stop = harness.channel("hostile"), threading.Event()
            reader = threading.Thread(target=read_away, args=(channel, stop), daemon=True)
            reader.start()
            greeting = pack_message(Hello(VERSION, rng.randbytes(16)))
            packets = [malformed(rng, ref.token, request(rng, ref.token)) for _ in range(BATCH)]
            packets.insert(0, greeting if rng.random() < 0.9 else b"")
            # The channel may be dropped before all of them were sent.
            with suppress(StreamingError):
                channel.send([memoryview(b"".join(packets))], Deadline(30))
            sent += BATCH
            stop.set()
            reader.join(30)
            channel.close()
        grown = psutil.Process().memory_info().rss - before
        assert grown < 64 << 20
        body = fetch(harness.receiver("site-1"), ref.token)
        assert b"".join(body.views(0, body.layout.nbytes)) == bytes(
            b"".join(MODEL.views(0, MODEL.layout.nbytes))
        )


class Script:
    """A channel on which everything has been said already."""

    def __init__(self, data):
        self._data = memoryview(data)

    def receive_some(self, views):
        taken = 0
        for view in views:
            piece = self._data[: len(view)]
            view[: len(piece)] = piece
            self._data = self._data[len(piece) :]
            taken += len(piece)
        return taken

    def wait(self, seconds, abort=None):
        if not self._data:
            raise ChannelClosedError("all has been said")
        return True

    beats = False

    def send(self, views, deadline):
        """Nobody listens."""

    def close(self):
        """There is nothing to close."""

    def send_some(self, views, *, more=False):
        return sum(map(len, views))


def test_a_receiver_meets_a_hundred_thousand_malformed_packets_with_typed_errors():
    rng = random.Random("receiver")
    layout = MODEL.layout.plain_header[8:]
    before = psutil.Process().memory_info().rss
    ends = set()
    batch = 5  # few, since a peer that is surely broken is given up at once
    for _ in range(PACKETS // batch):
        token = rng.randbytes(16)
        opened = rng.choice((Opened(1, layout), Opened(PUSHED, layout, 4096, 32768)))
        opening = pack_message(Hello(VERSION)) if rng.random() < 0.9 else b""
        opening += pack_message(opened, token) if rng.random() < 0.8 else b""
        packets = [malformed(rng, token, reply(rng, layout)) for _ in range(batch)]
        settings = StreamSettings(chunk_size=4096, push=rng.random() < 0.5)
        receiver = Receiver(Script(opening + b"".join(packets)), "hostile")
        try:
            RemoteSource(receiver, token, settings).receive_whole()
        except StreamingError as error:
            ends.add(type(error).__name__)
    assert {"ChannelClosedError", "ProtocolError"} <= ends
    assert psutil.Process().memory_info().rss - before < 64 << 20
