"""What a receiver has is not sent: found by digests of blocks, never taken for what it is not."""

from dataclasses import replace

import numpy as np
import pytest
from asking import Asker, refusal
from harness import QUICK, open_harness
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_tensors, body_of, tensor

from flstream.errors import SourceChangedError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.digests import BLOCK_BYTES
from flstream.model.memory import MemoryBody
from flstream.streaming.download import AtHand, download
from flstream.streaming.held import KnownBody
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.wire import Digest, Fetch

REUSING = StreamSettings(chunk_size=256 << 10, request_size=512 << 10, reuse=True)
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


def in_place(sink: MemoryBody) -> AtHand[MemoryBody]:
    return AtHand(lambda _: sink)


BLOCKS = st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 3)


@settings(deadline=None)
@given(
    BLOCKS,
    st.sampled_from([4096, 16 << 10, 64 << 10, 192 << 10, 256 << 10, 4 << 20]),
    st.sampled_from(["new memory", "in place", "front to back"]),
)
def test_only_blocks_that_differ_are_fetched(blocks, chunk_size, sink):
    with open_harness() as harness:
        receiver = harness.receiver()
        ref = harness.service.offer(body(), ["site-1"])
        held = changed(blocks)
        into = held if sink == "in place" else MemoryBody.allocate(held.layout)
        how = replace(REUSING, chunk_size=chunk_size, request_size=1 << 20)
        receiver.speeds.worth = lambda share: True  # whatever the sample says
        if sink == "front to back" and chunk_size == 192 << 10:
            how = replace(how, chunk_size=128 << 10)  # what is copied at a time is whole chunks
        decode = FrontToBack if sink == "front to back" else None
        here = AtHand(lambda _: held)
        _, cost = download(receiver, ref.token, how, lambda _: into, at_hand=here, decode=decode)
        assert body_of(into) == body_of(body())
        assert ref.wait(10).ok
        assert (cost.bytes, cost.reused) == (size_of(blocks), NBYTES - size_of(blocks))
        assert ref.deliveries["site-1"].bytes == cost.bytes


class FrontToBack:
    """What a remote source gives, read from front to back."""

    random_access = False

    def __init__(self, remote) -> None:
        self.layout, self.views = remote.layout, remote.views


def requests(watch, kind):
    return [each for each in watch.requests if isinstance(each, kind)]


def test_where_little_is_here_a_few_blocks_are_digested_and_all_are_fetched(harness):
    receiver, watch = harness.watched()
    nbytes = 300 * BLOCK_BYTES
    ref = harness.service.offer(body(1, nbytes), ["site-1"])
    sink = body(2, nbytes)
    _, cost = download(receiver, ref.token, REUSING, lambda _: sink, at_hand=in_place(sink))
    assert body_of(sink) == body_of(body(1, nbytes))
    assert (cost.bytes, cost.reused) == (nbytes, 0)
    (asked,) = requests(watch, Digest)
    assert len(asked.sample) == 8
    assert all(each.chunk_size == REUSING.chunk_size for each in requests(watch, Fetch))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"reuse": False}, "w"),
        ({"chunk_size": 0}, "w"),
        ({"chunk_size": 4000, "request_size": 64000}, "w"),
        ({}, "another"),
    ],
    ids=["off", "native", "chunks that are no part of a block", "another layout"],
)
def test_elsewhere_nothing_is_compared(harness, change, name):
    receiver, watch = harness.watched()
    ref = harness.service.offer(body(), ["site-1"])
    held = MemoryBody.of({name: body().tensors["w"]})
    how, here = replace(REUSING, ping_after=5.0, **change), AtHand(lambda _: held)
    sink, cost = download(receiver, ref.token, how, MemoryBody.allocate, at_hand=here)
    assert body_of(sink) == body_of(body())
    assert (cost.reused, requests(watch, Digest)) == (0, [])


def written(path, source) -> FileSource:
    with FileSink(path, source.layout) as sink:
        copy(source, sink)
        return sink.finish()


def test_a_file_that_changes_after_it_was_compared_is_found_out(harness, tmp_path):
    ref = harness.service.offer(body(), ["site-1"])
    here = written(tmp_path / "here.safetensors", body())
    remote = RemoteSource(harness.receiver(), ref.token, REUSING)
    remote.reuse(here)
    with here.path.open("r+b") as file:
        file.seek(here.header_bytes + 100)
        file.write(b"other")
    with pytest.raises(SourceChangedError, match="changed after it was opened"):
        remote.deliver(MemoryBody.allocate(remote.layout), None)


def test_blocks_in_files_are_copied_from_one_to_the_other(harness, tmp_path):
    offered = written(tmp_path / "offered.safetensors", body())
    base = written(tmp_path / "here.safetensors", changed({3, 4, 30}))
    ref = harness.service.offer(offered, ["site-1"])
    with FileSink(tmp_path / "got.safetensors", base.layout) as sink:
        _, cost = download(
            harness.receiver(), ref.token, REUSING, lambda _: sink, at_hand=AtHand(lambda _: base)
        )
        got = sink.finish()
    assert body_of(got) == body_of(body())
    assert cost.bytes == 3 * BLOCK_BYTES
    # What was digested once is known.
    assert len(base.digests) >= COUNT - 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sample": [40]}, "not among those"),
        ({"sample": [2**32 - 1]}, "not among those"),
        ({"sample": [0], "chunk_size": 0}, "too many"),
        ({"chunk_size": 0}, "too many"),
        ({"sample": [0], "stop": NBYTES + 1}, "not a range"),
        ({"sample": [0], "start": 8}, "multiples of 16"),
    ],
)
def test_digests_of_chunks_that_there_are_not_are_refused(harness, change, reason):
    ref = harness.service.offer(body(), ["site-1"])
    asked = {"start": 0, "stop": NBYTES, "chunk_size": BLOCK_BYTES, **change}
    assert reason in refusal(Asker(harness.channel()), Digest(ref.token, 1, **asked))


SMALL = {"w": tensor("F32", (32, 32)), "b": tensor("F16", (5,))}


@pytest.mark.parametrize("at_hand", ["the same", "another value", "another name"])
def test_a_short_body_that_is_known_does_not_come_again(harness, at_hand):
    value, name = SMALL["w"] + (at_hand == "another value"), "v" * (at_hand == "another name")
    known = KnownBody.of(MemoryBody.of({name or "w": value, "b": SMALL["b"]}))
    receiver, watch = harness.watched()
    ref = harness.service.offer(MemoryBody.of(SMALL), ["site-1"])
    how, here = replace(QUICK, reuse=True), AtHand(lambda _: None, known)
    sink, cost = download(receiver, ref.token, how, MemoryBody.allocate, at_hand=here)
    assert_same_tensors(sink.tensors, SMALL)
    assert ref.wait(10).ok
    is_here = at_hand == "the same"
    assert (cost.reused > 0, cost.chunks, len(watch.frames)) == (
        (True, 0, 0) if is_here else (False, 2, 2)
    )
