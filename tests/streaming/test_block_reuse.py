"""What a receiver has is not sent: found by digests of blocks, never taken for what it is not."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from harness import Slow, open_harness, received
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import FrontToBack, body_of

from flstream.errors import ProtocolError
from flstream.model.memory import MemoryBody
from flstream.streaming.api import add_tensors, download_file
from flstream.streaming.download import RemoteSource
from flstream.streaming.refs import block_length
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
    sink, cost, ref = harness.fetched(
        body(), how, sink_for=sink_for, opening={"digests": True}, held=held, decode=decode
    )
    assert ref.deliveries["site-1"].bytes == cost.bytes
    return sink, cost


@given(
    BLOCKS,
    st.sampled_from([4096, 4000, 16 << 10, 64 << 10, 192 << 10, 256 << 10, 4 << 20]),
    st.sampled_from(["new memory", "in place", "front to back"]),
)
@example(set(), 4096, "new memory")
def test_only_blocks_that_differ_are_fetched(blocks, chunk_size, sink):
    with open_harness() as harness:
        held = changed(blocks)
        into = held if sink == "in place" else MemoryBody.allocate(held.layout)
        decode = FrontToBack if sink == "front to back" else None
        how = replace(REUSING, chunk_size=chunk_size)
        _, cost = fetched(harness, held, lambda _: into, how, decode)
        assert body_of(into) == body_of(body())
        assert (cost.bytes, cost.reused) == (size_of(blocks), NBYTES - size_of(blocks))
        assert bool(cost.requests) == bool(blocks)


def test_digests_are_taken_once_for_all_and_another_layout_is_of_no_use(harness):
    reads = []

    class Counting(MemoryBody):
        def in_place(self, start, stop):
            reads.append(start)
            return super().in_place(start, stop)

    counting = Counting(body().layout, body().tensors)
    ref = harness.service.offer(counting, ["site-1", "site-2"])
    for name in ("site-1", "site-2"):
        remote = RemoteSource(harness.receiver(name), ref.token, REUSING, digests=True)
        received(remote, held=body())
    assert reads == list(range(0, NBYTES, BLOCK_BYTES))
    sink, cost = fetched(harness, MemoryBody.of({"another": body().tensors["w"]}))
    assert body_of(sink) == body_of(body())
    assert cost.reused == 0


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
        received(remote, held=body())


@pytest.mark.parametrize("nbytes", [0, 1, 64 << 10, 16 << 30, (16 << 30) + 1, 1 << 40])
def test_the_digests_of_all_blocks_take_2_mib_at_most(nbytes):
    size = block_length(nbytes)
    assert size >= 64 << 10
    assert -(-nbytes // size) * 8 <= 2 << 20


def test_a_sender_that_takes_long_for_its_digests_says_that_it_lives(harness):
    ref = harness.service.offer(Slow(0.025), ["site-1"])  # for each of 32 blocks
    how = replace(REUSING, ping_after=0.05, ping_timeout=0.6)
    remote = RemoteSource(harness.receiver(), ref.token, how, digests=True)
    assert remote.cost.seconds > how.ping_after + how.ping_timeout
    remote.close("it has been measured")


@pytest.mark.parametrize("left", ["as it was", "damaged", "of another model", "of another layout"])
def test_a_download_into_a_file_goes_on_with_what_is_sound_of_it(harness, tmp_path, left):
    nbytes, first = 400_000, {"w": np.random.default_rng(3).random(100_000, dtype=np.float32)}
    path, progress = tmp_path / "model.safetensors", []
    part = path.with_name(path.name + ".tmp")

    def go_on(name, model, on_progress):
        ref = add_tensors(harness.service, model, [name])
        how = {"settings": StreamSettings(1024), "on_progress": on_progress, "resume": True}
        return download_file(harness.receiver(name), ref.token, path, **how)[0]

    def stop(done, _):
        if done >= 300_000:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        go_on("first", first, stop)
    assert not path.exists()
    model = {"w": first["w"] + (left == "of another model")}
    data = bytearray(part.read_bytes())
    if left == "damaged":
        data[-nbytes + 5] ^= 1
    part.write_bytes(b"something else altogether" * 999 if left == "of another layout" else data)
    here, due = part.read_bytes()[-nbytes:], model["w"].tobytes()
    starts = range(0, nbytes, BLOCK_BYTES)
    missing = [at for at in starts if here[at:][:BLOCK_BYTES] != due[at:][:BLOCK_BYTES]]
    assert (len(missing) < 5) == (left in ("as it was", "damaged"))
    status = go_on("second", model, lambda done, _: progress.append(done))
    assert status.cost.bytes == sum(min(BLOCK_BYTES, nbytes - at) for at in missing)
    assert progress == sorted(set(progress))
    assert progress[-1] == nbytes
    assert torch.equal(load_file(path)["w"], torch.from_numpy(model["w"]))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
