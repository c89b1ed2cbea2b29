"""Downloads: every tensor arrives bit by bit, in as many frames and requests as promised."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch
from harness import QUICK, fetch, open_harness
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same_tensors, body_of, entries, tensor

from flstream.errors import RefusedError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming.download import RemoteSource, download
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import HEADER_BYTES, Close, Fetch, Open
from flstream.telemetry.events import Transfer

MODEL = {"large": tensor("F32", (300, 100)), "small": tensor("F16", (5,)), "flag": tensor("U8", ())}
SMALL = {"w": tensor("F32", (32, 32)), "b": tensor("F16", (5,))}
KIB = 1 << 10
multiples_of_16 = st.integers(1, 40).map(lambda count: 16 * count)


@given(entries(), multiples_of_16)
def test_every_tensor_arrives_bit_by_bit_in_one_request_and_frames_as_promised(
    given_entries, chunk_size
):
    tensors = {name: tensor(code, shape) for name, code, shape in given_entries}
    body = MemoryBody.of(tensors)
    with open_harness() as harness:
        receiver, channel = harness.watched()
        ref = harness.service.offer(body, ["site-1"])
        remote = RemoteSource(receiver, ref.token, StreamSettings(chunk_size, 30), eager=False)
        sink = download(remote, MemoryBody.allocate)
        assert ref.wait(30).ok
    assert_same_tensors(sink.tensors, tensors)
    nbytes, cost = body.layout.nbytes, remote.cost
    assert all(frame.length <= chunk_size for frame in channel.frames)
    assert len(channel.frames) == ceil(nbytes / chunk_size)
    assert cost == Transfer(nbytes, nbytes > 0, len(channel.frames), 0, cost.seconds)
    delivery = ref.deliveries["site-1"]
    assert (delivery.bytes, delivery.requests, delivery.chunks) == (
        nbytes,
        nbytes > 0,
        len(channel.frames),
    )


@pytest.mark.parametrize("tensors", [{}, {"none": torch.zeros(0)}], ids=["none", "empty"])
@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_model_without_bytes_arrives(harness, tensors, chunk_size):
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = replace(QUICK, chunk_size=chunk_size)
    remote = RemoteSource(harness.receiver(), ref.token, how)
    assert_same_tensors(download(remote, MemoryBody.allocate).tensors, tensors)
    assert ref.wait(30).ok
    assert remote.cost.chunks == remote.cost.requests == 0


def test_a_body_in_one_frame_is_the_bytes_of_all_tensors(harness):
    body = MemoryBody.of(MODEL)
    ref = harness.service.offer(body, ["site-1"])
    frames = []
    receiver, _ = harness.watched(lambda header, packet: frames.append(packet[HEADER_BYTES:-8]))
    assert_same_tensors(fetch(receiver, ref.token, replace(QUICK, chunk_size=0)).tensors, MODEL)
    assert [bytes(frame) for frame in frames] == [body_of(body)]


def kinds(channel):
    return [type(request) for request in channel.requests]


def test_a_small_body_takes_two_requests_and_counts_as_one_fetch(harness):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MemoryBody.of(SMALL), ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK)
    assert_same_tensors(download(remote, MemoryBody.allocate).tensors, SMALL)
    cost = remote.cost
    assert kinds(channel) == [Open, Close]
    assert (cost.requests, cost.retries, cost.chunks) == (1, 0, 2)
    assert ref.deliveries["site-1"].requests == 1


@pytest.mark.parametrize(
    ("nbytes", "settings", "fetches"),
    [
        (64 * KIB, StreamSettings(), 0),
        (64 * KIB + 1, StreamSettings(), 1),
        (64 * KIB + 1, QUICK, 1),
        (0, QUICK, 0),
        (100, replace(QUICK, chunk_size=0), 1),
    ],
    ids=["64 KiB", "more", "more, in many frames", "nothing", "native"],
)
def test_what_has_64_kib_comes_with_its_layout_and_the_rest_by_one_request(
    harness, nbytes, settings, fetches
):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MemoryBody.of({"w": np.zeros(nbytes, np.uint8)}), ["site-1"])
    assert fetch(receiver, ref.token, settings).layout.nbytes == nbytes
    assert kinds(channel).count(Fetch) == fetches
    assert ref.wait(10).ok


class Squares:
    """A tensor store of one's own: tensors that are made when they are asked for."""

    def __init__(self, count):
        self.layout = Layout.of([("squares", "I64", (count,))])

    def read(self, start, stop, into):
        into[:] = (np.arange(start // 8, stop // 8) ** 2).tobytes()


@pytest.mark.parametrize("chunk_size", [4096, 2 << 20, 0])
def test_a_source_of_ones_own_is_offered_range_by_range(harness, chunk_size):
    ref = harness.service.offer(Squares(300_000), ["site-1"])
    body = fetch(harness.receiver(), ref.token, replace(QUICK, chunk_size=chunk_size))
    assert torch.equal(body.tensors["squares"], torch.arange(300_000) ** 2)
    assert ref.wait(10).ok


def test_a_connection_carries_one_download_at_a_time_and_threads_wait_for_their_turn(harness):
    receiver = harness.receiver()
    first, second = (harness.service.offer(MemoryBody.of(MODEL), ["site-1"]) for _ in range(2))
    remote = RemoteSource(receiver, first.token, QUICK)
    with pytest.raises(RefusedError, match="carries one at a time; end it first"):
        RemoteSource(receiver, second.token, QUICK)
    with ThreadPoolExecutor(1) as executor:
        waits = executor.submit(fetch, receiver, second.token)
        with pytest.raises(TimeoutError):
            waits.result(0.1)
        assert_same_tensors(download(remote, MemoryBody.allocate).tensors, MODEL)
        assert_same_tensors(waits.result(30).tensors, MODEL)
    assert first.wait(10).ok
    assert second.wait(10).ok
