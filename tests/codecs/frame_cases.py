"""Bytes of every kind of tensor, as exact codecs must bring them back."""

import numpy as np

from flstream.codecs.delta import Delta
from flstream.codecs.frame_codec import FrameCodec
from flstream.codecs.shuffle import Shuffle
from flstream.codecs.zstd import Zstd

STEPS = {
    "zstd": (),
    "delta, zstd": (Delta(),),
    "shuffle, zstd": (Shuffle(),),
    "delta, shuffle, zstd": (Delta(), Shuffle()),
}


def codec_of(name: str) -> FrameCodec:
    return FrameCodec(STEPS[name], Zstd(), "zstd")


def near(data: bytes, seed: int) -> bytes:
    """Bytes that differ from others in few places, as those of a trained model."""
    changed = np.frombuffer(data, np.uint8).copy()
    random = np.random.default_rng(seed)
    if len(changed):
        changed[random.integers(0, len(changed), len(changed) // 20 + 1)] ^= 0x81
    return changed.tobytes()
