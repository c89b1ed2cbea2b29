"""Malformed packets each way: typed errors alone, memory is bounded, and the service goes on."""

import random
import socket
from contextlib import suppress

import numpy as np
import psutil
import pytest
from harness import fetch, open_harness
from nightly_cases import first_and_nightly
from support import body_of

from flstream.errors import StreamingError
from flstream.model.memory import MemoryBody
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.wire import (
    FRAME,
    MESSAGE,
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
from flstream.transport.sockets import SocketChannel

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
            return Opened(rng.randrange(9), told, number(rng) % 2**63)
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


@first_and_nightly("packets", [2_000, 100_000])
def test_a_service_goes_on_after_malformed_requests(packets):
    rng = random.Random("service")
    with open_harness() as harness:
        ref = harness.service.offer(MODEL, ["site-1", "hostile"])
        before = psutil.Process().memory_info().rss
        for _ in range(packets // BATCH):  # few, since the first one ends a channel
            ours, theirs = socket.socketpair()
            harness.service.attach(SocketChannel(ours, "hostile"), "hostile")
            with theirs:
                hello = pack_message(Hello(VERSION, rng.randbytes(16)))
                sent = [malformed(rng, ref.token, request(rng, ref.token)) for _ in range(BATCH)]
                with suppress(OSError):  # it may have been closed by now
                    theirs.sendall(hello * (rng.random() < 0.9) + b"".join(sent))
        assert psutil.Process().memory_info().rss - before < 64 << 20
        body = fetch(harness.receiver("site-1"), ref.token)
        assert body_of(body) == body_of(MODEL)


@first_and_nightly("packets", [5_000, 100_000])
def test_a_receiver_meets_malformed_packets_with_typed_errors(packets):
    rng = random.Random("receiver")
    layout = MODEL.layout.plain_header[8:]
    before = psutil.Process().memory_info().rss
    ends = set()
    for _ in range(packets // BATCH):
        token = rng.randbytes(16)
        said = pack_message(Hello(VERSION)) * (rng.random() < 0.9)
        said += pack_message(Opened(1, layout), token) * (rng.random() < 0.8)
        said += b"".join(malformed(rng, token, reply(rng, layout)) for _ in range(BATCH))
        ours, theirs = socket.socketpair()
        with ours, Receiver(SocketChannel(theirs, "hostile"), "hostile") as receiver:
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises(StreamingError) as raised:
                fetch(receiver, token, StreamSettings(4096))
            ends.add(type(raised.value).__name__)
    assert {"ChannelClosedError", "ProtocolError"} <= ends
    assert psutil.Process().memory_info().rss - before < 64 << 20
