"""Codecs that several threads use at once, as those of a sender do."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from flstream.model.body import Scratch
from flstream.model.memory import MemoryBody
from tests.codecs.lossy_cases import lossy, model
from tests.support import body_of

THREADS = 8


@pytest.mark.parametrize("name", ["int8", "topk", "cast bf16"])
def test_threads_that_read_one_encoded_body_get_its_bytes(name):
    source = MemoryBody.of(model())
    codec = lossy(name)
    due = body_of(codec.encode(source))
    encoded = codec.encode(source)
    decoded = codec.decode(encoded, source.layout)
    rounded = body_of(codec.rounded(source))

    def read(number):
        scratch = Scratch()
        for start, stop in encoded.layout.ranges(4096 * (number + 1)):
            assert encoded.views(start, stop, scratch)[0] == due[start:stop]
        for start, stop in decoded.layout.ranges(40_960 * (number + 1)):
            assert decoded.views(start, stop, scratch)[0] == rounded[start:stop]

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(THREADS)))
