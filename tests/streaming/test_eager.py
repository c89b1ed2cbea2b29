"""A small body comes together with its layout, whatever happens on the way."""

from dataclasses import replace

import numpy as np
import pytest
from harness import QUICK, fetch
from support import assert_same_tensors, tensor

from flstream.errors import CheckpointError
from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.wire import Close, Fetch, Open

SMALL = {"w": tensor("F32", (32, 32)), "b": tensor("F16", (5,))}
KIB = 1 << 10


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
def test_only_what_fits_one_request_and_64_kib_comes_unasked(harness, nbytes, settings, fetches):
    receiver, channel = harness.watched()
    ref = harness.service.offer(MemoryBody.of({"w": np.zeros(nbytes, np.uint8)}), ["site-1"])
    assert fetch(receiver, ref.token, settings).layout.nbytes == nbytes
    assert kinds(channel).count(Fetch) == fetches
    assert ref.wait(10).ok


def test_bytes_that_have_no_place_are_passed_over_by_the_next_download(harness):
    def no_place(layout):
        raise CheckpointError("the disk is full")

    receiver = harness.receiver()
    ref = harness.service.offer(MemoryBody.of(SMALL), ["site-1"])
    with pytest.raises(CheckpointError):
        download(receiver, ref.token, QUICK, no_place)
    again = harness.service.offer(MemoryBody.of(SMALL), ["site-1"])
    assert_same_tensors(fetch(receiver, again.token).tensors, SMALL)
