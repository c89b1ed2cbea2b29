"""Downloads: every tensor arrives bit by bit, in as many frames and requests as promised."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import MODEL, QUICK, fetch, open_harness, received
from hypothesis import example, given
from hypothesis import strategies as st
from support import assert_same_tensors, body_of, entries, tensor

from flstream.errors import RefusedError
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming.download import RemoteSource
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import Close, Fetch, Open
from flstream.telemetry.events import Transfer


@given(entries(), st.integers(0, 40).map(lambda count: 16 * count))
@example([], 0)
@example([("empty", "F32", (0,))], 0)
def test_every_bit_arrives_by_one_request_in_frames_as_promised(given_entries, chunk_size):
    tensors = {name: tensor(code, shape) for name, code, shape in given_entries}
    body, how = MemoryBody.of(tensors), StreamSettings(chunk_size, 30)
    with open_harness() as harness:
        receiver, watch = harness.watched()
        opening = {"eager": False}
        sink, cost, ref = harness.fetched(body, how, receiver=receiver, opening=opening)
    assert_same_tensors(sink.tensors, tensors)
    nbytes = body.layout.nbytes
    starts = range(0, nbytes, chunk_size or max(nbytes, 1))
    expected = [(start, min(starts.step, nbytes - start)) for start in starts]
    assert [(frame.start, frame.length) for frame in watch.frames] == expected
    assert cost == Transfer(nbytes, nbytes > 0, len(starts), 0, cost.seconds)
    sent = ref.deliveries["site-1"]
    assert (sent.bytes, sent.requests, sent.chunks) == (nbytes, nbytes > 0, len(starts))


@pytest.mark.parametrize(
    ("nbytes", "settings", "fetches", "frames"),
    [
        (64 << 10, StreamSettings(), 0, 1),
        (4110, QUICK, 0, 2),
        ((64 << 10) + 1, StreamSettings(), 1, 1),
        ((64 << 10) + 1, QUICK, 1, 17),
        (0, QUICK, 0, 0),
        (100, replace(QUICK, chunk_size=0), 1, 1),
    ],
    ids=["64 KiB", "in two frames", "more", "more, in many frames", "nothing", "native"],
)
def test_64_kib_come_with_the_layout_more_by_a_request(harness, nbytes, settings, fetches, frames):
    receiver, watch = harness.watched()
    body = MemoryBody.of({"w": np.full(nbytes, 7, np.uint8)})
    sink, cost, ref = harness.fetched(body, settings, receiver=receiver)
    assert body_of(sink) == body_of(body)
    kinds = [type(request) for request in watch.requests]
    assert kinds.count(Fetch) == fetches
    assert fetches or kinds == [Open, Close]
    # What comes with the layout counts as a request, too.
    assert cost.requests == ref.deliveries["site-1"].requests == (nbytes > 0)
    assert (cost.retries, cost.chunks) == (0, frames)


@pytest.mark.nightly
def test_a_tensor_of_more_than_4_gib_streams_from_a_sparse_file(harness, tmp_path):
    size = (4 << 30) + (33 << 20) + 48
    with (tmp_path / "sparse").open("wb") as file:
        file.write(Layout.of([("w", "U8", (size,))]).header())
        body = file.tell()
        file.truncate(body + size)
        for place in (4 << 30, size):
            file.seek(body + place - 64)
            file.write(bytes(range(1, 65)))
    ref = harness.service.offer(FileSource(tmp_path / "sparse"), ["site-1"])
    remote = RemoteSource(harness.receiver(), ref.token, replace(QUICK, chunk_size=2 << 20))
    chunk, found = memoryview(bytearray(2 << 20)), {}
    for start, stop in remote.layout.ranges(2 << 20):
        remote.read(start, stop, chunk[: stop - start])
        if any(end := bytes(chunk[: stop - start][-64:])):
            found[stop] = end
    remote.close()
    assert remote.cost.bytes == size
    assert found == {4 << 30: bytes(range(1, 65)), size: bytes(range(1, 65))}


class Squares:
    """A tensor store of one's own: tensors that are made when they are asked for."""

    def __init__(self, count):
        self.layout = Layout.of([("squares", "I64", (count,))])

    def read(self, start, stop, into):
        into[:] = (np.arange(start // 8, stop // 8) ** 2).tobytes()


@pytest.mark.parametrize("chunk_size", [4096, 2 << 20, 0])
def test_a_source_of_ones_own_is_offered_and_may_stand_for_another_layout(harness, chunk_size):
    body, _, _ = harness.fetched(Squares(300_000), replace(QUICK, chunk_size=chunk_size))
    assert torch.equal(body.tensors["squares"], torch.arange(300_000) ** 2)
    encoded, layout = Squares(10), MemoryBody.of(MODEL).layout
    ref = harness.service.offer(encoded, ["site-1"], decoded=layout)
    with RemoteSource(harness.receiver(), ref.token, QUICK) as remote:
        assert (remote.layout, remote.decoded) == (encoded.layout, layout)


def test_a_connection_carries_one_download_at_a_time_and_threads_wait_for_their_turn(harness):
    receiver = harness.receiver()
    first, second = harness.offer(MODEL), harness.offer(MODEL)
    remote = RemoteSource(receiver, first.token, QUICK)
    with pytest.raises(RefusedError, match="carries one at a time; end it first"):
        RemoteSource(receiver, second.token, QUICK)
    with ThreadPoolExecutor(1) as executor:
        waits = executor.submit(fetch, receiver, second.token)
        with pytest.raises(TimeoutError):
            waits.result(0.1)
        assert_same_tensors(received(remote).tensors, MODEL)
        assert_same_tensors(waits.result(30).tensors, MODEL)
    assert first.wait(10).ok
    assert second.wait(10).ok
