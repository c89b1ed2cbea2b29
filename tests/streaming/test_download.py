"""Downloads: every tensor arrives bit by bit, in as many frames and requests as promised."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import safetensors.torch
import torch
from harness import QUICK, fetch, open_harness
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same_tensors, entries, tensor

from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.wire import HEADER_BYTES, Close, Fetch, Open
from flstream.telemetry.events import Transfer

MODEL = {"large": tensor("F32", (300, 100)), "small": tensor("F16", (5,)), "flag": tensor("U8", ())}
SMALL = {"w": tensor("F32", (32, 32)), "b": tensor("F16", (5,))}
KIB = 1 << 10
multiples_of_16 = st.integers(1, 40).map(lambda count: 16 * count)


@given(entries(), multiples_of_16, multiples_of_16, st.integers(1, 5))
def test_every_tensor_arrives_bit_by_bit_in_frames_and_requests_as_promised(
    given_entries, chunk_size, request_size, window
):
    tensors = {name: tensor(code, shape) for name, code, shape in given_entries}
    body = MemoryBody.of(tensors)
    how = StreamSettings(chunk_size, request_size, window, request_timeout=30)
    with open_harness() as harness:
        receiver, channel = harness.watched()
        ref = harness.service.offer(body, ["site-1"])
        sink, stats = download(receiver, ref.token, how, MemoryBody.allocate)
        assert ref.wait(30).ok
    assert_same_tensors(sink.tensors, tensors)
    frame_size = min(chunk_size, request_size)
    nbytes = body.layout.nbytes
    assert all(frame.length <= chunk_size for frame in channel.frames)
    assert len(channel.frames) == ceil(nbytes / frame_size)
    requests = ceil(nbytes / (request_size // frame_size * frame_size))
    assert stats == Transfer(nbytes, requests, len(channel.frames), 0, stats.seconds)
    delivery = ref.deliveries["site-1"]
    assert (delivery.bytes, delivery.requests, delivery.chunks) == (
        nbytes,
        requests,
        len(channel.frames),
    )


@pytest.mark.parametrize("tensors", [{}, {"none": torch.zeros(0)}], ids=["none", "empty"])
@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_model_without_bytes_arrives(harness, tensors, chunk_size):
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = replace(QUICK, chunk_size=chunk_size)
    sink, stats = download(harness.receiver(), ref.token, how, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert ref.wait(30).ok
    assert stats.chunks == stats.requests == 0


def test_one_message_of_the_whole_model_is_a_safetensors_file(harness):
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    messages = []
    receiver, _ = harness.watched(
        lambda header, packet: messages.append(bytes(packet[HEADER_BYTES:]))
    )
    _, stats = download(receiver, ref.token, replace(QUICK, chunk_size=0), MemoryBody.allocate)
    assert stats.chunks == stats.requests == 1
    assert_same_tensors(safetensors.torch.load(messages[0]), MODEL)


def kinds(channel):
    return [type(request) for request in channel.requests]


def test_a_small_body_takes_two_requests_and_counts_as_one_fetch(harness):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MemoryBody.of(SMALL), ["site-1"])
    sink, cost = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, SMALL)
    assert kinds(channel) == [Open, Close]
    assert (cost.requests, cost.retries, cost.chunks) == (1, 0, 2)
    assert ref.deliveries["site-1"].requests == 1


@pytest.mark.parametrize(
    ("nbytes", "settings", "fetches"),
    [
        (64 * KIB, StreamSettings(), 0),
        (64 * KIB + 1, StreamSettings(), 1),
        (16 * KIB, QUICK, 0),
        (16 * KIB + 1, QUICK, 2),
        (0, QUICK, 0),
        (100, replace(QUICK, chunk_size=0), 1),
    ],
    ids=["64 KiB", "more", "a request", "more than a request", "nothing", "native"],
)
def test_only_what_fits_one_request_and_64_kib_comes_with_its_layout(
    harness, nbytes, settings, fetches
):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MemoryBody.of({"w": np.zeros(nbytes, np.uint8)}), ["site-1"])
    assert fetch(receiver, ref.token, settings).layout.nbytes == nbytes
    assert kinds(channel).count(Fetch) == fetches
    assert ref.wait(10).ok
