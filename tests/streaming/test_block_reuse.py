"""What a receiver has is not sent: found by digests of blocks, never taken for what it is not."""

import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from harness import open_harness
from hypothesis import given, settings
from hypothesis import strategies as st
from support import body_of

from flstream.errors import ProtocolError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.memory import MemoryBody
from flstream.streaming.download import RemoteSource, download
from flstream.streaming.reuse import block_size
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import Opened, pack_message

REUSING = StreamSettings(chunk_size=256 << 10, reuse=True)
BLOCK_BYTES = 64 << 10
COUNT = 40  # blocks of the body
NBYTES = COUNT * BLOCK_BYTES - 1000


def body(seed: int = 1, nbytes: int = NBYTES) -> MemoryBody:
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    return MemoryBody.of({"w": data}, writable=True)


def changed(blocks: set[int], nbytes: int = NBYTES) -> MemoryBody:
    """The body of the seed 1 with a byte changed in each of some blocks."""
    other = body(nbytes=nbytes)
    for block in blocks:
        (view,) = other.views(block * BLOCK_BYTES, block * BLOCK_BYTES + 1)
        view[0] ^= 1
    return other


def size_of(blocks: set[int]) -> int:
    return sum(min((each + 1) * BLOCK_BYTES, NBYTES) - each * BLOCK_BYTES for each in blocks)


BLOCKS = st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 3)


def fetched(harness, held, sink_for=MemoryBody.allocate, how=REUSING, decode=None):
    """The sink and the cost of a download by one who has something at hand."""
    ref = harness.service.offer(body(), ["site-1"])
    remote = RemoteSource(harness.receiver(), ref.token, how, digests=True)
    sink = download(remote, sink_for, held=lambda _: held, decode=decode)
    assert ref.wait(10).ok
    assert ref.deliveries["site-1"].bytes == remote.cost.bytes
    return sink, remote.cost


@settings(deadline=None)
@given(
    BLOCKS,
    st.sampled_from([4096, 4000, 16 << 10, 64 << 10, 192 << 10, 256 << 10, 4 << 20]),
    st.sampled_from(["new memory", "in place", "front to back"]),
)
def test_only_blocks_that_differ_are_fetched(blocks, chunk_size, sink):
    with open_harness() as harness:
        held = changed(blocks)
        into = held if sink == "in place" else MemoryBody.allocate(held.layout)
        decode = FrontToBack if sink == "front to back" else None
        how = replace(REUSING, chunk_size=chunk_size)
        _, cost = fetched(harness, held, lambda _: into, how, decode)
        assert body_of(into) == body_of(body())
        assert (cost.bytes, cost.reused) == (size_of(blocks), NBYTES - size_of(blocks))


class FrontToBack:
    """What a remote source gives, read from front to back."""

    def __init__(self, remote) -> None:
        self.layout, self.read = remote.layout, remote.read


def test_a_body_of_another_layout_is_of_no_use(harness):
    sink, cost = fetched(harness, MemoryBody.of({"another": body().tensors["w"]}))
    assert body_of(sink) == body_of(body())
    assert cost.reused == 0


def test_all_that_is_here_takes_no_request(harness):
    sink, cost = fetched(harness, body())
    assert body_of(sink) == body_of(body())
    assert (cost.requests, cost.reused) == (0, NBYTES)


def test_digests_are_taken_once_for_all_who_ask(harness):
    reads = []

    class Counting(MemoryBody):
        def in_place(self, start, stop):
            reads.append(start)
            return super().in_place(start, stop)

    counting = Counting(body().layout, body().tensors)
    ref = harness.service.offer(counting, ["site-1", "site-2"])
    for name in ("site-1", "site-2"):
        remote = RemoteSource(harness.receiver(name), ref.token, REUSING, digests=True)
        download(remote, MemoryBody.allocate, held=lambda _: body())
    assert reads == list(range(0, NBYTES, BLOCK_BYTES))


@pytest.mark.parametrize("change", ["too few", "none"])
def test_digests_that_are_not_those_of_the_body_end_the_download(harness, change):
    def lie(reply, packet):
        if isinstance(reply, Opened):
            digests = reply.digests[:-8] if change == "too few" else b""
            packet[:] = pack_message(msgspec.structs.replace(reply, digests=digests))

    receiver, _ = harness.watched(on_reply=lie)
    ref = harness.service.offer(body(), ["site-1"])
    remote = RemoteSource(receiver, ref.token, REUSING, digests=True)
    with pytest.raises(ProtocolError, match="bytes of digests"):
        download(remote, MemoryBody.allocate, held=lambda _: body())


def written(path, source) -> FileSource:
    with FileSink(path, source.layout) as sink:
        copy(source, sink)
        return sink.finish()


def test_blocks_in_files_are_copied_from_one_to_the_other(harness, tmp_path):
    base = written(tmp_path / "here.safetensors", changed({3, 4, 30}))
    with FileSink(tmp_path / "got.safetensors", base.layout) as sink:
        _, cost = fetched(harness, base, lambda _: sink)
        got = sink.finish()
    assert body_of(got) == body_of(body())
    assert cost.bytes == 3 * BLOCK_BYTES


@pytest.mark.parametrize("nbytes", [0, 1, 64 << 10, 16 << 30, (16 << 30) + 1, 1 << 40])
def test_the_digests_of_all_blocks_take_2_mib_at_most(nbytes):
    size = block_size(nbytes)
    assert size >= 64 << 10
    assert -(-nbytes // size) * 8 <= 2 << 20


class Slow:
    """A body that is read at 3 MB/s."""

    layout = body().layout

    def read(self, start: int, stop: int, into: memoryview) -> None:
        time.sleep(0.02)
        into[:] = bytes(len(into))


def test_a_sender_that_takes_long_for_its_digests_says_that_it_lives(harness):
    ref = harness.service.offer(Slow(), ["site-1"])
    how = replace(REUSING, ping_after=0.05, ping_timeout=0.6)
    remote = RemoteSource(harness.receiver(), ref.token, how, digests=True)
    assert remote.cost.seconds > how.ping_after + how.ping_timeout
    remote.close("it has been measured")
