"""Codecs that several threads use at once, as those of a sender do."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from flstream.codecs.frame_codec import FramePlace
from flstream.model.body import Scratch
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from tests.codecs.frame_cases import STEPS, codec_of, near
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


@pytest.mark.parametrize("name", STEPS)
def test_threads_that_share_a_codec_of_frames_do_not_mix_them_up(name):
    layout = Layout.of([("w", "F32", (100_000,))])
    codec = codec_of(name)

    def turn(number):
        random = np.random.default_rng(number)
        body = (random.standard_normal(100_000) * 0.02).astype(np.float32).tobytes()
        base, out = near(body, number), bytearray(layout.nbytes)
        for start, stop in layout.ranges(48_000):
            place = FramePlace(layout, start, stop)
            own = memoryview(base)[start:stop]
            payload = codec.encode(memoryview(body)[start:stop], place, own)
            assert payload is not None
            codec.decode(memoryview(payload), memoryview(out)[start:stop], place, own)
        assert out == body

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(turn, range(THREADS)))
