"""Exact codecs of frames: every bit comes back, and a payload makes no more than it is due."""

import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from flstream.codecs.frames import FrameCodec, FramePlace, shuffle
from flstream.codecs.zstd import Zstd
from flstream.errors import CodecError
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from tests.support import entries

STEPS = ("zstd", "delta, zstd", "shuffle, zstd", "delta, shuffle, zstd")


def codec_of(name: str) -> FrameCodec:
    return FrameCodec(name.split(", ")[:-1], Zstd(), "zstd")


def near(data: bytes, seed: int) -> bytes:
    """Bytes that differ from others in few places, as those of a trained model."""
    changed = np.frombuffer(data, np.uint8).copy()
    random = np.random.default_rng(seed)
    if len(changed):
        changed[random.integers(0, len(changed), len(changed) // 20 + 1)] ^= 0x81
    return changed.tobytes()


def frame_of(data, name="w", dtype="U8"):
    layout = Layout.of([(name, dtype, (len(data),))])
    return FramePlace(layout, 0, len(data))


def decoded(codec, payload, data, place, base=None):
    """What a receiver has of a frame that was sent so, or as it is."""
    out = bytearray(len(data))
    if payload is None:
        return bytes(data)
    codec.decode(memoryview(payload), memoryview(out), place, base)
    return bytes(out)


def through(codec, data, place, base=None):
    payload = codec.encode(memoryview(data), place, base)
    return decoded(codec, payload, data, place, base)


@pytest.mark.parametrize("name", STEPS)
@given(st.data())
def test_every_bit_of_every_kind_comes_back_however_the_body_is_cut(name, data):
    layout = Layout.of(data.draw(entries()))
    body = data.draw(st.binary(min_size=layout.nbytes, max_size=layout.nbytes))
    base = None
    if data.draw(st.booleans()):
        base = BufferSource(layout, memoryview(bytearray(near(body, 3))))
    step = data.draw(st.integers(1, layout.nbytes + 2))
    codec = codec_of(name)
    for start, stop in layout.ranges(step):
        place = FramePlace(layout, start, stop)
        assert through(codec, body[start:stop], place, base) == body[start:stop]


@pytest.mark.parametrize(("dtype", "itemsize"), [("F64", 8), ("F32", 4), ("BF16", 2), ("C64", 8)])
def test_a_shuffle_puts_the_same_bytes_of_all_elements_side_by_side(dtype, itemsize):
    layout = Layout.of([("a", dtype, (70_000,)), ("b", dtype, (3,))])
    data = np.random.default_rng(0).integers(0, 256, layout.nbytes, np.uint8)
    out = bytearray(layout.nbytes)
    place = FramePlace(layout, 0, layout.nbytes)
    shuffle(memoryview(data), memoryview(out), place, undo=False)
    assert bytes(out) == data.reshape(-1, itemsize).T.tobytes()


def test_trained_weights_shrink_by_delta_and_shuffle_and_random_bytes_are_sent_as_they_are():
    random = np.random.default_rng(0)
    base = (random.standard_normal(200_000) * 0.02).astype(np.float32)
    trained = base + (random.standard_normal(200_000) * 1e-5).astype(np.float32)
    layout = Layout.of([("w", "F32", (200_000,))])
    place = FramePlace(layout, 0, layout.nbytes)
    ours = memoryview(trained.tobytes())
    theirs, same = (BufferSource(layout, memoryview(bytearray(each))) for each in (base, trained))
    sizes = {name: len(codec_of(name).encode(ours, place, theirs)) for name in STEPS}
    assert sizes["delta, shuffle, zstd"] < 0.6 * len(ours)
    assert sizes["delta, shuffle, zstd"] < sizes["delta, zstd"] < sizes["zstd"]
    unchanged = codec_of("delta, zstd").encode(ours, place, same)
    assert len(unchanged) < 200
    noise = random.bytes(10_000)
    assert codec_of("zstd").encode(memoryview(noise), frame_of(noise), None) is None


def test_a_bomb_is_refused_and_never_unpacked():
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    without_size = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    place = frame_of(bytes(1000), "weights")
    for payload in (bomb, without_size):
        tracemalloc.start()
        with pytest.raises(CodecError, match=r"'weights'.*more bytes instead of 1000"):
            codec_of("zstd").decode(memoryview(payload), memoryview(bytearray(1000)), place, None)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()


def test_a_payload_that_asks_for_a_large_window_is_refused():
    params = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    payload = writer.compress(bytes(1000)) + writer.flush()
    with pytest.raises(CodecError, match="no Zstandard frame"):
        Zstd().expand(memoryview(payload), 1000)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_payload_is_refused_or_gives_as_many_bytes_as_are_due(payload, size):
    with suppress(CodecError):
        assert len(Zstd().expand(memoryview(payload), size)) == size


@given(st.sampled_from(STEPS), st.integers(0), st.integers(0, 255), st.booleans())
def test_a_damaged_payload_is_refused_or_fills_the_frame_alone(name, place, byte, is_cut):
    data = np.arange(500, dtype=np.uint32).tobytes()
    payload = bytearray(codec_of(name).encode(memoryview(data), frame_of(data), None))
    place %= len(payload)
    payload = payload[:place] if is_cut else payload[:place] + bytes([byte]) + payload[place + 1 :]
    room = bytearray(b"x" * (len(data) + 1))
    with suppress(CodecError):
        codec_of(name).decode(memoryview(payload), memoryview(room)[:-1], frame_of(data), None)
    assert room[-1:] == b"x"


def test_a_frame_longer_than_any_window_comes_back():
    data = (np.arange(5 << 20, dtype=np.uint32) // 7).tobytes()
    assert through(codec_of("zstd"), data, frame_of(data)) == data


class Failing:
    def compress(self, data):
        raise KeyError("dictionary")

    def expand(self, payload, size):
        return [0] * size if payload else b"short"


def test_a_compressor_of_the_user_that_fails_is_named_with_the_tensor():
    codec = FrameCodec((), Failing(), "mine.py:Failing")
    place = frame_of(bytes(10), "weights")
    with pytest.raises(CodecError, match=r"mine.py:Failing raised KeyError .*'weights'"):
        codec.encode(memoryview(bytes(10)), place, None)
    with pytest.raises(CodecError, match=r"'weights'.* came as 5 bytes"):
        codec.decode(memoryview(b""), memoryview(bytearray(10)), place, None)
    with pytest.raises(CodecError, match=r"mine.py:Failing returned list .*; return bytes"):
        codec.decode(memoryview(b"x"), memoryview(bytearray(10)), place, None)
