"""What is damaged on the way is fetched again, and only that; after a break, what is missing is."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import QUICK, fetch, flip
from support import assert_same_tensors, tensor

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    RefusedError,
)
from flstream.model.memory import MemoryBody
from flstream.streaming import receiver as receiver_module
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.wire import HEADER_BYTES, Fetch, Ping, Refused
from flstream.telemetry.events import Transfer
from flstream.transport.channel import Signal

MODEL = {"large": tensor("F32", (300, 100)), "small": tensor("F16", (5,)), "flag": tensor("U8", ())}
ALL, FRAMES = 120_011, 30  # bytes of MODEL, and frames of a download of it


@pytest.mark.parametrize("returns", [False, True], ids=["pair", "connects again"])
@pytest.mark.parametrize(("turn", "place"), [(1, HEADER_BYTES), (17, -1), (FRAMES, -1)])
def test_a_frame_that_is_damaged_is_fetched_again_and_only_it(harness, turn, place, returns):
    def on_frame(header, packet):
        if len(watch.frames) == turn:
            flip(packet, place)

    receiver, watch = harness.watched(on_frame, returns=returns)
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert ref.wait(30).ok
    start = 4096 * (turn - 1)
    stop = min(start + 4096, ALL)
    again = [each for each in watch.requests if isinstance(each, Fetch) and each.urgent]
    assert [(each.start, each.stop) for each in again] == [(start, stop)]
    sent = [frame.start for frame in watch.frames]
    assert sorted(sent) == sorted([*range(0, ALL, 4096), start])
    assert stats == Transfer(ALL, 9, FRAMES, 1, stats.seconds)
    assert ref.deliveries["site-1"].bytes == ALL + stop - start
    assert watch.connections == 1


def test_a_refusal_that_is_lost_is_given_again_to_a_ping(harness):
    def lose(reply, packet):
        if isinstance(reply, Refused) and not pings():
            packet.clear()

    receiver, watch = harness.watched(on_reply=lose)

    def pings():
        return [each for each in watch.requests if isinstance(each, Ping)]

    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK)
    ref.abort("enough")
    with pytest.raises(RefusedError, match="settled"):
        remote.receive_whole()
    assert pings()


def test_damage_all_over_a_model_is_repaired_without_more_requests_than_a_sender_takes(harness):
    tensors = {"w": tensor("U8", (32_000,))}
    seen = set()

    def every_other(header, packet):
        if header.start % 32 == 0 and header.start not in seen:
            seen.add(header.start)
            flip(packet)

    receiver, watch = harness.watched(every_other)
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = StreamSettings(chunk_size=16, request_size=32_000, request_timeout=30)
    sink, stats = download(receiver, ref.token, how, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert (stats.retries, stats.chunks, len(watch.frames)) == (1000, 2000, 3000)


@pytest.mark.parametrize("ends", ["time", "abort"])
def test_a_sender_that_is_gone_for_good_is_given_up_after_a_while(harness, monkeypatch, ends):
    monkeypatch.setattr(receiver_module, "RECONNECT_SECONDS", 0.3)
    attempts, abort = [], Signal()

    def connect():
        attempts.append(1)
        if ends == "abort":
            abort.set()
        raise ChannelClosedError("server at 127.0.0.1:9 cannot be reached")

    receiver = Receiver(harness.channel(), "server", abort, connect=connect)
    harness.service.close()
    error = AbortedError if ends == "abort" else ChannelClosedError
    with pytest.raises(error, match=r"called off|cannot be reached"):
        fetch(receiver, bytes(16))
    assert len(attempts) == 1 if ends == "abort" else len(attempts) > 2
    abort.close()


@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "breaks"])
def test_downloads_of_several_threads_share_a_connection_also_one_that_breaks(harness, breaks):
    models = [{"w": tensor("F32", (40_000 + n,), seed=n)} for n in range(6)]

    def break_some(header, packet):
        # Also what a connection that broke still has on its way.
        if breaks and len(watch.frames) >= 7 and watch.connections < 3:
            flip(packet, 20)

    receiver, watch = harness.watched(break_some)
    refs = [harness.service.offer(MemoryBody.of(model), ["site-1"]) for model in models]
    with ThreadPoolExecutor(len(refs)) as executor:
        bodies = list(executor.map(lambda ref: fetch(receiver, ref.token), refs))
    for model, body in zip(models, bodies, strict=True):
        assert_same_tensors(body.tensors, model)
    assert all(ref.wait(30).ok for ref in refs)
    assert watch.connections == (3 if breaks else 1)


def test_a_download_that_is_called_off_does_not_hold_up_another_of_its_connection(harness):
    receiver = harness.receiver()
    large = {"w": tensor("U8", (4 << 20,))}
    refs = [harness.service.offer(MemoryBody.of(large), ["site-1"]) for _ in range(2)]
    abort, begun = Signal(), threading.Event()

    def stop_half_way(start, _stop):
        if start == 1 << 20:
            abort.set()
            begun.set()

    how = QUICK, MemoryBody.allocate, stop_half_way, None, abort
    with ThreadPoolExecutor(1) as executor:
        called_off = executor.submit(download, receiver, refs[0].token, *how)
        assert begun.wait(30)
        assert_same_tensors(fetch(receiver, refs[1].token).tensors, large)
        assert isinstance(called_off.exception(30), AbortedError)
    abort.close()
