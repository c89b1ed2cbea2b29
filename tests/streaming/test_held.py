"""What a receiver has is not sent: found by digests of blocks, never taken for what it is not."""

import itertools
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from asking import Asker, ask
from harness import QUICK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import assert_same_tensors, tensor

from flstream.errors import SourceChangedError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.digests import BLOCK_BYTES, chunk_digest
from flstream.model.memory import MemoryBody
from flstream.streaming.digesting import Digesting
from flstream.streaming.download import AtHand, download
from flstream.streaming.held import KnownBody
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import Close, Digest, Fetch, Open, Refused
from flstream.telemetry.events import Transfer
from flstream.transport.sockets import pipe

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


def bits(source) -> bytes:
    return b"".join(source.views(0, source.layout.nbytes, Scratch()))


def size_of(blocks: set[int]) -> int:
    return sum(min((each + 1) * BLOCK_BYTES, NBYTES) - each * BLOCK_BYTES for each in blocks)


def in_place(sink: MemoryBody) -> AtHand[MemoryBody]:
    return AtHand(lambda _: sink)


BLOCKS = st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 3)


@settings(max_examples=60, deadline=None)
@given(
    BLOCKS,
    st.sampled_from([4096, 16 << 10, 64 << 10, 192 << 10, 256 << 10, 4 << 20]),
    st.booleans(),
)
def test_only_blocks_that_differ_are_fetched(blocks, chunk_size, is_in_place):
    ours, theirs = pipe("site-1", "server")
    with DownloadService() as service, Receiver(theirs, "server") as receiver:
        service.attach(ours, "site-1")
        ref = service.offer(body(), ["site-1"])
        held = changed(blocks)
        sink = held if is_in_place else MemoryBody.allocate(held.layout)
        how = replace(REUSING, chunk_size=chunk_size, request_size=1 << 20)
        receiver.speeds.worth = lambda share: True  # whatever the sample says
        _, cost = download(receiver, ref.token, how, lambda _: sink, at_hand=AtHand(lambda _: held))
        assert bits(sink) == bits(body())
        assert ref.wait(10).ok
        assert (cost.bytes, cost.reused) == (size_of(blocks), NBYTES - size_of(blocks))
        assert ref.deliveries["site-1"].bytes == cost.bytes


@settings(max_examples=40, deadline=None)
@given(BLOCKS, st.sampled_from([4096, 64 << 10, 192 << 10]), st.integers(1, 5))
def test_a_body_that_is_read_from_front_to_back_has_them_too(blocks, chunk_size, frames):
    ours, theirs = pipe("site-1", "server")
    with DownloadService() as service, Receiver(theirs, "server") as receiver:
        service.attach(ours, "site-1")
        ref = service.offer(body(), ["site-1"])
        receiver.speeds.worth = lambda share: True
        remote = RemoteSource(receiver, ref.token, replace(REUSING, chunk_size=chunk_size))
        remote.reuse(changed(blocks))
        scratch = Scratch()
        data = b"".join(
            bytes(view)
            for start, stop in remote.layout.ranges(frames * chunk_size)
            for view in remote.views(start, stop, scratch)
        )
        remote.close()
        assert data == bits(body())
        assert remote.cost.bytes == size_of(blocks)


class _Read:
    """What a remote source gave, read from front to back."""

    def __init__(self, remote: RemoteSource) -> None:
        self.layout = remote.layout
        ranges = remote.layout.ranges(256 << 10)
        self._data = [bytes(v) for a, b in ranges for v in remote.views(a, b, Scratch())]

    def views(self, *_: object) -> list[bytes]:
        return self._data


def requests(watch, kind):
    return [each for each in watch.requests if isinstance(each, kind)]


def test_where_little_is_here_a_few_blocks_are_digested_and_all_are_fetched(harness):
    receiver, watch = harness.watched()
    nbytes = 300 * BLOCK_BYTES
    ref = harness.service.offer(body(1, nbytes), ["site-1"])
    sink = body(2, nbytes)
    _, cost = download(receiver, ref.token, REUSING, lambda _: sink, at_hand=in_place(sink))
    assert bits(sink) == bits(body(1, nbytes))
    assert (cost.bytes, cost.reused) == (nbytes, 0)
    (asked,) = requests(watch, Digest)
    assert len(asked.sample) == 8
    assert all(each.chunk_size == REUSING.chunk_size for each in requests(watch, Fetch))


@pytest.mark.parametrize(
    ("change", "others"),
    [
        ({"reuse": False}, {}),
        ({"chunk_size": 0}, {}),
        ({"push": True}, {"push": REUSING}),
        ({"chunk_size": 4000, "request_size": 64000}, {}),
    ],
    ids=["off", "native", "pushed", "chunks that are no part of a block"],
)
def test_elsewhere_nothing_is_compared(harness, change, others):
    receiver, watch = harness.watched()
    ref = harness.service.offer(body(), ["site-1"], **others)
    sink = body()
    how = replace(REUSING, ping_after=5.0, **change)
    _, cost = download(receiver, ref.token, how, lambda _: sink, at_hand=in_place(sink))
    assert (cost.reused, requests(watch, Digest)) == (0, [])


@pytest.mark.parametrize("window", [1, 16, 256])
def test_any_number_of_single_blocks_is_fetched_in_any_window(harness, window):
    nbytes = 600 * BLOCK_BYTES
    ref = harness.service.offer(body(1, nbytes), ["site-1"])
    sink = changed(set(range(0, 600, 2)), nbytes)
    how = replace(REUSING, window=window, request_size=64 << 20)
    receiver = harness.receiver()
    receiver.speeds.worth = lambda share: True
    _, cost = download(receiver, ref.token, how, lambda _: sink, at_hand=in_place(sink))
    assert bits(sink) == bits(body(1, nbytes))
    assert cost.bytes == nbytes // 2


def written(path, source) -> FileSource:
    with FileSink(path, source.layout) as sink:
        copy(source, sink)
        return sink.finish()


@pytest.mark.parametrize("reads", ["into a sink", "front to back"])
def test_a_file_that_changes_after_it_was_compared_is_found_out(harness, tmp_path, reads):
    ref = harness.service.offer(body(), ["site-1"])
    here = written(tmp_path / "here.safetensors", body())
    remote = RemoteSource(harness.receiver(), ref.token, REUSING)
    remote.reuse(here)
    with here.path.open("r+b") as file:
        file.seek(here.header_bytes + 100)
        file.write(b"other")
    into = MemoryBody.allocate(remote.layout)
    read = partial(remote.deliver, into, None) if reads == "into a sink" else partial(_Read, remote)
    with pytest.raises(SourceChangedError, match="changed after it was opened"):
        read()


def test_a_source_of_another_layout_is_of_no_use(harness):
    receiver, watch = harness.watched()
    ref = harness.service.offer(body(), ["site-1"])
    other = MemoryBody.of({"v": np.frombuffer(bits(body()), np.uint8)})
    sink, cost = download(
        receiver, ref.token, REUSING, MemoryBody.allocate, at_hand=AtHand(lambda _: other)
    )
    assert bits(sink) == bits(body())
    assert (cost.reused, requests(watch, Digest)) == (0, [])


def test_a_sender_that_digests_no_samples_sends_all(harness):
    receiver, watch = harness.watched()
    ref = harness.service.offer(body(), ["site-1"])
    sink = body()
    remote = RemoteSource(receiver, ref.token, REUSING)
    receiver.incoming.capabilities = frozenset({"digests", "parts"})
    remote.reuse(sink)
    assert requests(watch, Digest) == []
    remote.deliver(sink, None)
    assert remote.cost.bytes == NBYTES
    remote.close()


def test_blocks_in_files_are_copied_from_one_to_the_other(harness, tmp_path):
    path, other = tmp_path / "offered.safetensors", tmp_path / "here.safetensors"
    for target, source in ((path, body()), (other, changed({3, 4, 30}))):
        with FileSink(target, source.layout) as sink:
            copy(source, sink)
            sink.finish()
    ref = harness.service.offer(FileSource(path), ["site-1"])
    base = FileSource(other)
    with FileSink(tmp_path / "got.safetensors", base.layout) as sink:
        _, cost = download(
            harness.receiver(), ref.token, REUSING, lambda _: sink, at_hand=AtHand(lambda _: base)
        )
        got = sink.finish()
    assert bits(got) == bits(body())
    assert cost.bytes == 3 * BLOCK_BYTES
    # What was digested once is known.
    assert len(base.digests) >= COUNT - 1


@pytest.mark.nightly
@given(
    portions=st.lists(st.integers(1, 200_000), min_size=1, max_size=40), seed=st.integers(0, 2**32)
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_digests_that_several_receivers_ask_for_at_once_are_right(tmp_path, portions, seed):
    """One may be faster with a chunk that another has begun."""
    path = tmp_path / "m.safetensors"
    with FileSink(path, body().layout, durable=False) as sink:
        copy(body(), sink)
        sink.finish()
    source, size = FileSource(path), BLOCK_BYTES
    request = Digest(bytes(16), 1, 0, NBYTES, size)
    answers = [Digesting(request, source) for _ in range(3)]
    left, portion, turns = list(answers), itertools.cycle(portions), random.Random(seed)
    while left:
        each = turns.choice(left)
        if each.go_on(next(portion), Scratch()):
            left.remove(each)
    right = b"".join(
        chunk_digest(body(), start, min(start + size, NBYTES), Scratch()).to_bytes(8, "little")
        for start in range(0, NBYTES, size)
    )
    assert [bytes(each.packed) for each in answers] == [right] * 3


class TestSamples:
    """Requests for the digests of some chunks."""

    def digests(self, harness, **request):
        asker = Asker(harness.channel())
        ref = harness.service.offer(body(), ["site-1"])
        given = {"start": 0, "stop": NBYTES, "chunk_size": BLOCK_BYTES, **request}
        return ask(asker, Digest(ref.token, asker.next_number(), **given))

    def test_are_answered_in_their_order(self, harness):
        got = self.digests(harness, sample=[39, 0, 7]).digests
        stops = [NBYTES, BLOCK_BYTES, 8 * BLOCK_BYTES]
        for index, (number, stop) in enumerate(zip([39, 0, 7], stops, strict=True)):
            digest = chunk_digest(body(), number * BLOCK_BYTES, stop, Scratch())
            assert got[8 * index :][:8] == digest.to_bytes(8, "little")

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            ({"sample": [40]}, "not among those"),
            ({"sample": [2**32 - 1]}, "not among those"),
            ({"sample": [0], "chunk_size": 0}, "too many"),
            ({"chunk_size": 0}, "too many"),
            ({"sample": [0], "stop": NBYTES + 1}, "not a range"),
            ({"sample": [0], "start": 8}, "multiples of 16"),
        ],
    )
    def test_of_chunks_that_there_are_not_are_refused(self, harness, request_, reason):
        refused = self.digests(harness, **request_)
        assert isinstance(refused, Refused)
        assert reason in refused.reason


SMALL = {"w": tensor("F32", (32, 32)), "b": tensor("F16", (5,))}


class TestShortBodies:
    """Bodies that come with their layout."""

    def fetch(self, harness, known, *, on_reply=None, offered=SMALL, **options):
        receiver, watch = harness.watched()
        if on_reply is not None:
            watch.on_reply = on_reply
        ref = harness.service.offer(MemoryBody.of(offered), ["site-1"])
        how = replace(QUICK, **{"reuse": True, **options})
        sink, cost = download(
            receiver, ref.token, how, MemoryBody.allocate, at_hand=AtHand(lambda _: None, known)
        )
        assert_same_tensors(sink.tensors, offered)
        assert ref.wait(10).ok
        return cost, watch

    def test_that_are_known_do_not_come_again(self, harness):
        known = KnownBody.of(MemoryBody.of(SMALL))
        cost, watch = self.fetch(harness, known)
        assert replace_seconds(cost) == Transfer(reused=known.source.layout.nbytes)
        assert [type(each) for each in watch.requests] == [Open, Close]
        assert watch.frames == []

    @pytest.mark.parametrize("name", ["w", "v"])
    def test_of_which_a_value_or_a_name_differs_come_whole(self, harness, name):
        other = {name: tensor("F32", (32, 32)) + (name == "w"), "b": SMALL["b"]}
        cost, _ = self.fetch(harness, KnownBody.of(MemoryBody.of(other)))
        assert (cost.reused, cost.chunks) == (0, 2)

    def test_come_whole_where_nothing_is_reused(self, harness):
        cost, _ = self.fetch(harness, KnownBody.of(MemoryBody.of(SMALL)), reuse=False)
        assert cost.reused == 0

    @pytest.mark.parametrize("nbytes", [0, (64 << 10) + 1])
    def test_only_are_kept(self, nbytes):
        assert KnownBody.of(body(1, nbytes)) is None
        assert KnownBody.of(body(1, 64 << 10)) is not None


def replace_seconds(cost: Transfer) -> Transfer:
    return Transfer(cost.bytes, cost.requests, cost.chunks, cost.retries, 0.0, cost.reused)
