"""Push: the sender begins before it is asked; the bits are those of pull."""

from dataclasses import replace

import numpy as np
import pytest
from harness import QUICK, fetch

from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.wire import PUSHED, Close, Fetch, Opened, Ping

PUSH = replace(QUICK, push=True)
MODEL = MemoryBody.of(
    {
        "large": np.random.default_rng(1).integers(0, 256, 150_000, dtype=np.uint8),
        **{f"small.{i}": np.arange(i, dtype=np.float32) for i in range(60)},
    }
)
BITS = b"".join(MODEL.views(0, MODEL.layout.nbytes))
WINDOW = PUSH.window * PUSH.request_size


def bits(body):
    return b"".join(body.views(0, body.layout.nbytes))


def kinds(channel):
    return [type(request) for request in channel.requests]


def test_a_window_comes_unasked_and_the_rest_is_asked_for(harness):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    body, cost = download(receiver, ref.token, PUSH, MemoryBody.allocate)
    assert bits(body) == BITS
    assert set(kinds(channel)) == {Fetch, Ping, Close}
    pushed = [frame for frame in channel.frames if frame.request == PUSHED]
    assert sum(frame.length for frame in pushed) == WINDOW
    fetched = [(each.start, each.stop) for each in channel.requests if isinstance(each, Fetch)]
    starts = range(WINDOW, len(BITS), PUSH.request_size)
    assert fetched == [(start, min(start + PUSH.request_size, len(BITS))) for start in starts]
    assert cost.requests == len(fetched)
    assert cost.chunks == len(channel.frames) == -(-len(BITS) // PUSH.chunk_size)
    assert ref.wait(5).ok


@pytest.mark.parametrize("lost", ["the opening", "every frame"])
def test_where_the_pushing_fails_to_come_it_is_pulled(harness, lost):
    def on_reply(reply, packet):
        if lost == "the opening" and isinstance(reply, Opened) and reply.request == PUSHED:
            packet.clear()

    def on_frame(header, packet):
        if lost == "every frame" and header.request == PUSHED:
            packet.clear()

    receiver, channel = harness.watched(on_frame, on_reply=on_reply)
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    assert bits(fetch(receiver, ref.token, PUSH)) == BITS
    assert Fetch in kinds(channel)
    assert ref.wait(5).ok
