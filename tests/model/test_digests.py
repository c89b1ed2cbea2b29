"""Digests of a whole body in little memory, and of its chunks while it is written."""

import tracemalloc

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import ChunkDigester, ChunkDigests, body_digest
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

BODY = np.random.default_rng(5).bytes(10_000)


def expected(chunk_size):
    return {
        (start, min(start + chunk_size, len(BODY))): xxhash.xxh3_64_intdigest(
            BODY[start : start + chunk_size]
        )
        for start in range(0, len(BODY), chunk_size)
    }


def take(digester, cuts):
    for start, stop in zip([0, *cuts], [*cuts, len(BODY)], strict=True):
        digester.take(start, memoryview(BODY)[start:stop])


def assert_known(digests, chunk_size):
    known = expected(chunk_size)
    assert {place: digests.get(*place) for place in known} == known
    assert len(digests) == len(known)


@given(
    st.sampled_from([16, 1024, 4096, 9_984, 10_000, 16_384]),
    st.sets(st.integers(1, len(BODY) - 1), max_size=12),
)
def test_chunks_have_the_same_digests_however_the_body_is_written(chunk_size, cuts):
    digester = ChunkDigester(len(BODY), chunk_size)
    take(digester, sorted(cuts))
    assert_known(digester.digests, chunk_size)


def test_a_body_that_is_written_again_from_its_beginning_has_the_digests_of_the_last_time():
    digester = ChunkDigester(len(BODY), 4096)
    digester.take(0, memoryview(bytes(5000)))
    take(digester, [6000])
    assert_known(digester.digests, 4096)


def test_what_does_not_follow_is_refused():
    digester = ChunkDigester(len(BODY), 4096)
    digester.take(0, memoryview(BODY)[:100])
    with pytest.raises(ValueError, match="bytes from 101 on do not follow"):
        digester.take(101, memoryview(BODY)[101:200])


# What there is room for: so many chunks of each of so many lengths, and so many others.
CHUNKS, LENGTHS, OTHERS = 1 << 18, 4, 1024


def noted(digests, starts, length, digest):
    """Note the same digest for several ranges, and return for how many of them it is known."""
    for start in starts:
        digests.note(start, start + length, digest)
    return sum(digests.get(start, start + length) == digest for start in starts)


def test_there_is_room_for_so_many_digests_and_no_more():
    digests = ChunkDigests()
    lengths = [16 * number for number in range(1, LENGTHS + 1)]
    for length in lengths:
        assert noted(digests, [0, length * (CHUNKS - 1)], length, 1) == 2
    others = [
        (length * place, length) for length in lengths for place in range(CHUNKS, CHUNKS + 300)
    ]
    kept = sum(noted(digests, [start], length, 2) for start, length in others)
    assert kept == OTHERS < len(others)
    assert noted(digests, [0], 16 * (LENGTHS + 1), 3) == 0
    # What is known may still be replaced.
    assert noted(digests, [0], 16, 4) == 1
    start, length = others[0]
    assert noted(digests, [start], length, 5) == 1


@pytest.mark.parametrize("excess", [0, 1])
def test_where_there_are_more_chunks_than_room_none_is_digested(excess):
    digester = ChunkDigester(4096 * CHUNKS + excess, 4096)
    take(digester, [6000])
    assert len(digester.digests) == (0 if excess else len(BODY) // 4096)


def test_a_file_sink_gives_what_it_writes_to_its_digester(tmp_path):
    layout = MemoryBody.of({"w": np.frombuffer(BODY, np.uint8)}).layout
    digester = ChunkDigester(layout.nbytes, 4096)
    with FileSink(tmp_path / "w.safetensors", layout, digester=digester) as sink:
        for start, stop in layout.ranges(2048):
            (view,) = sink.views(start, stop)
            view[:] = BODY[start:stop]
            sink.commit(start, stop)
        sink.finish()
    assert_known(digester.digests, 4096)


def test_the_digest_of_a_large_model_takes_little_memory(tmp_path):
    path = tmp_path / "large.safetensors"
    layout = Layout.of([("w", "U8", (256 << 20,))])
    with FileSink(path, layout) as sink:
        sink.finish()
    tracemalloc.start()
    try:
        body_digest(FileSource(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        path.unlink()
    assert peak < 4 << 20
