"""Exact codecs of frames: every bit comes back, and a payload makes no more than it is due."""

from contextlib import suppress

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from flstream.codecs.frames import FrameCodec, FrameCoder, Zstd, shuffle
from flstream.errors import CodecError
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from tests.support import entries, peak_of

STEPS = ("zstd", "delta, zstd", "shuffle, zstd", "delta, shuffle, zstd")


def coder_of(name: str, layout: Layout, base: BufferSource | None = None) -> FrameCoder:
    codec = FrameCodec(name.split(", ")[:-1], Zstd(), "zstd")
    return FrameCoder(codec, layout, base, "base")


def near(data: bytes, seed: int) -> bytes:
    """Bytes that differ from others in few places, as those of a trained model."""
    changed = np.frombuffer(data, np.uint8).copy()
    random = np.random.default_rng(seed)
    if len(changed):
        changed[random.integers(0, len(changed), len(changed) // 20 + 1)] ^= 0x81
    return changed.tobytes()


def frame_of(data):
    return Layout.of([("weights", "U8", (len(data),))])


def encoded(coder, data, start=0):
    """What is sent of a frame; None where it is sent as it is."""
    made = coder.encode(memoryview(data), start, start + len(data))
    return made if len(made) < len(data) else None


def decode(coder, payload, room, start=0):
    has_base = bool(coder.base)
    coder.decode(memoryview(payload), room, start, start + len(room), has_base=has_base)


def through(coder, data, start=0):
    payload, out = encoded(coder, data, start), bytearray(data)
    if payload is not None:
        out[:] = bytes(len(data))
        decode(coder, payload, memoryview(out), start)
    return bytes(out)


@pytest.mark.parametrize("name", STEPS)
@given(st.data())
def test_every_bit_of_every_kind_comes_back_however_the_body_is_cut(name, data):
    layout = Layout.of(data.draw(entries()))
    body = data.draw(st.binary(min_size=layout.nbytes, max_size=layout.nbytes))
    base = None
    if data.draw(st.booleans()):
        base = BufferSource(layout, memoryview(bytearray(near(body, 3))))
    step = data.draw(st.integers(1, layout.nbytes + 2))
    coder = coder_of(name, layout, base)
    for start, stop in layout.ranges(step):
        assert through(coder, body[start:stop], start) == body[start:stop]


@pytest.mark.parametrize(("dtype", "itemsize"), [("F64", 8), ("F32", 4), ("BF16", 2), ("C64", 8)])
def test_a_shuffle_puts_the_same_bytes_of_all_elements_side_by_side(dtype, itemsize):
    layout = Layout.of([("a", dtype, (70_000,)), ("b", dtype, (3,))])
    data = np.random.default_rng(0).integers(0, 256, layout.nbytes, np.uint8)
    out = bytearray(layout.nbytes)
    shuffle(memoryview(data), memoryview(out), layout, 0)
    assert bytes(out) == data.reshape(-1, itemsize).T.tobytes()


def test_trained_weights_shrink_by_delta_and_shuffle_and_random_bytes_are_sent_as_they_are():
    random = np.random.default_rng(0)
    base = (random.standard_normal(200_000) * 0.02).astype(np.float32)
    trained = base + (random.standard_normal(200_000) * 1e-5).astype(np.float32)
    layout = Layout.of([("w", "F32", (200_000,))])
    ours = trained.tobytes()
    theirs, same = (BufferSource(layout, memoryview(bytearray(each))) for each in (base, trained))
    sizes = {name: len(encoded(coder_of(name, layout, theirs), ours)) for name in STEPS}
    assert sizes["delta, shuffle, zstd"] < 0.6 * len(ours)
    assert sizes["delta, shuffle, zstd"] < sizes["delta, zstd"] < sizes["zstd"]
    assert len(encoded(coder_of("delta, zstd", layout, same), ours)) < 200
    noise = random.bytes(10_000)
    assert encoded(coder_of("zstd", frame_of(noise)), noise) is None


def test_a_bomb_is_refused_and_never_unpacked():
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    without_size = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    room = memoryview(bytearray(1000))

    def refuse():
        for payload in (bomb, without_size):
            with pytest.raises(CodecError, match=r"'weights'.*of other than 1000 bytes"):
                decode(coder_of("zstd", frame_of(room)), payload, room)

    assert peak_of(refuse) < 16 << 20


@given(st.sampled_from(STEPS), st.integers(0), st.integers(0, 255), st.booleans())
def test_a_damaged_payload_is_refused_or_fills_the_frame_alone(name, place, byte, is_cut):
    data = np.arange(500, dtype=np.uint32).tobytes()
    coder = coder_of(name, frame_of(data))
    payload = bytearray(encoded(coder, data))
    place %= len(payload)
    payload = payload[:place] if is_cut else payload[:place] + bytes([byte]) + payload[place + 1 :]
    room = bytearray(b"x" * (len(data) + 1))
    with suppress(CodecError):
        decode(coder, payload, memoryview(room)[:-1])
    assert room[-1:] == b"x"


class Failing:
    def compress(self, data):
        raise KeyError("dictionary")

    def expand(self, payload, size):
        return [0] * size if payload else b"short"


def test_a_compressor_of_the_user_that_fails_is_named_with_the_tensor():
    codec, room = FrameCodec((), Failing(), "mine.py:Failing"), memoryview(bytearray(10))
    coder = FrameCoder(codec, frame_of(room))
    with pytest.raises(CodecError, match=r"mine.py:Failing raised KeyError .*'weights'"):
        encoded(coder, bytes(10))
    with pytest.raises(CodecError, match=r"'weights'.* came as 5 bytes"):
        decode(coder, b"", room)
    with pytest.raises(CodecError, match=r"mine.py:Failing returned list .*; return bytes"):
        decode(coder, b"x", room)
