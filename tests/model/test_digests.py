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
    digester.take(0, memoryview(bytes(5000)))  # it is written again from its beginning
    take(digester, sorted(cuts))
    assert_known(digester.digests, chunk_size)


def test_what_does_not_follow_is_refused():
    digester = ChunkDigester(len(BODY), 4096)
    digester.take(0, memoryview(BODY)[:100])
    with pytest.raises(ValueError, match="bytes from 101 on do not follow"):
        digester.take(101, memoryview(BODY)[101:200])


@pytest.mark.parametrize("excess", [0, 1])
def test_where_there_are_more_chunks_than_room_none_is_digested(excess):
    chunks = 1 << 18
    digester = ChunkDigester(4096 * chunks + excess, 4096)
    take(digester, [6000])
    assert len(digester.digests) == (0 if excess else len(BODY) // 4096)
    digests = ChunkDigests()
    for place in range(chunks, chunks + 1100):  # those that are no chunks have little room
        digests.note(16 * place, 16 * (place + 1), 2)
    assert len(digests) == 1024
    digests.note(16 * chunks, 16 * (chunks + 1), 3)  # what is known may still be replaced
    assert digests.get(16 * chunks, 16 * (chunks + 1)) == 3


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
