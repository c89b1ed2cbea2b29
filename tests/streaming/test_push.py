"""Push: the sender begins before it is asked; the bits are those of pull."""

from dataclasses import replace

import numpy as np
import pytest
from asking import Asker
from harness import QUICK, fetch, flip, open_harness
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import RefusedError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.wire import FRAME, NOBODY, PUSHED, Close, Fetch, Open, Opened, Ping

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


@pytest.fixture
def harness():
    with open_harness() as harness:
        yield harness


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


def test_the_sender_goes_as_far_as_it_was_let_and_no_further(harness):
    asker = Asker(harness.channel())
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    frames = []
    while len(frames) < 8:
        header = asker.header()
        frames += [header] if header.kind == FRAME else []
    asker.packets.payload([memoryview(bytearray(frames[-1].length))], asker)
    assert not asker.channel.wait(0.1)
    assert sum(frame.length for frame in frames) == WINDOW
    assert ref.outcome is None


@pytest.mark.parametrize("first", ["offered", "attached"])
def test_a_receiver_may_come_before_or_after_the_offer(harness, first):
    if first == "attached":
        receiver = harness.receiver()
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    if first == "offered":
        # The service's thread takes one thing after another: the offer, then what is fetched here.
        other = harness.service.offer(MODEL, ["other"])
        assert bits(fetch(harness.receiver("other"), other.token)) == BITS
        receiver = harness.receiver()
    assert bits(fetch(receiver, ref.token, PUSH)) == BITS
    assert ref.deliveries["site-1"].bytes == len(BITS)


def test_only_declared_receivers_are_sent_anything(harness):
    other = Asker(harness.channel("other"))
    assert other.header().token == NOBODY  # the greeting
    other.packets.payload([memoryview(bytearray(other.packets.left))], other)
    receiver = harness.receiver("site-1")
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    assert bits(fetch(receiver, ref.token, PUSH)) == BITS
    assert not other.channel.wait(0.05)


@settings(max_examples=30, deadline=None)
@given(
    chunk=st.sampled_from([16, 1024, 4096, 65536, 1 << 20]),
    request=st.sampled_from([16, 4096, 65536, 1 << 20]),
    window=st.integers(1, 4),
)
def test_the_bits_are_the_same_at_any_size(chunk, request, window):
    how = StreamSettings(max(chunk, 512), max(request, 512), window, 30, 0.2, push=True)
    with open_harness() as harness:
        receiver = harness.receiver()
        for _ in range(2):  # the second follows on the heels of the first
            ref = harness.service.offer(MODEL, ["site-1"], push=how)
            assert bits(fetch(receiver, ref.token, how)) == BITS


def test_an_empty_model_is_pushed_too(harness):
    empty = MemoryBody.of({"none": np.zeros((0, 4), np.float32)})
    ref = harness.service.offer(empty, ["site-1"], push=PUSH)
    assert fetch(harness.receiver(), ref.token, PUSH).layout == empty.layout
    assert ref.wait(5).ok


def test_what_is_damaged_is_fetched_again_while_the_rest_is_pushed(harness):
    def on_frame(header, packet):
        if header.request == PUSHED and header.start == 2 * PUSH.chunk_size:
            flip(packet)

    receiver, channel = harness.watched(on_frame)
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    body, cost = download(receiver, ref.token, PUSH, MemoryBody.allocate)
    assert bits(body) == BITS
    (repair,) = [each for each in channel.requests if isinstance(each, Fetch) and each.urgent]
    assert (repair.start, repair.stop) == (2 * PUSH.chunk_size, 3 * PUSH.chunk_size)
    assert cost.retries == 1


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


def test_a_receiver_that_expects_a_push_in_vain_asks(harness):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MODEL, ["site-1"])
    assert bits(fetch(receiver, ref.token, PUSH)) == BITS
    assert kinds(channel)[:2] == [Ping, Open]


def test_a_receiver_that_pulls_what_is_pushed_gets_it_all_the_same(harness):
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    assert bits(fetch(harness.receiver(), ref.token, QUICK)) == BITS


def test_frames_for_which_the_receiver_has_no_room_are_not_taken(harness):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MODEL, ["site-1"], push=replace(PUSH, chunk_size=8192))
    assert bits(fetch(receiver, ref.token, PUSH)) == BITS
    assert channel.requests[0].start == 0


def test_a_withdrawn_push_is_refused_at_once(harness):
    receiver, channel = harness.watched()
    large = MemoryBody.of({"w": np.zeros(8 << 20, np.uint8)})
    how = StreamSettings(chunk_size=65536, request_size=1 << 20, push=True, ping_after=20)
    ref = harness.service.offer(large, ["site-1"], push=how)
    remote = RemoteSource(receiver, ref.token, how)
    ref.abort("there is a better one")
    with pytest.raises(RefusedError):
        remote.receive_whole()
    # It had not to wait until it would ask what is the matter.
    assert Ping not in kinds(channel)


def test_a_push_into_a_file_goes_on_with_what_is_there(harness, tmp_path):
    path = tmp_path / "model.safetensors"
    receiver = harness.receiver()
    ref = harness.service.offer(MODEL, ["site-1"])
    with FileSink(path, MODEL.layout, resume=True) as sink:
        for start, stop in MODEL.layout.ranges(PUSH.chunk_size):
            if start < len(BITS) // 2:
                (view,) = sink.views(start, stop)
                view[:] = BITS[start:stop]
                sink.commit(start, stop)
    ref = harness.service.offer(MODEL, ["site-1"], push=PUSH)
    sink, cost = download(
        receiver, ref.token, PUSH, lambda layout: FileSink(path, layout, resume=True)
    )
    with sink:
        sink.finish()
    source = FileSource(path)
    assert bytes(source.views(0, len(BITS), Scratch())[0]) == BITS
    assert cost.bytes < 0.6 * len(BITS)


def test_pushes_to_many_receivers_one_of_which_never_reads(harness):
    harness.receiver("silent")
    names = [f"site-{number}" for number in range(6)]
    receivers = [harness.receiver(name) for name in names]
    ref = harness.service.offer(MODEL, ["silent", *names], push=PUSH)
    for receiver in receivers:
        assert bits(fetch(receiver, ref.token, PUSH)) == BITS
    assert ref.outcome is None
