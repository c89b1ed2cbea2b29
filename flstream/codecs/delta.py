"""The delta from a base, which the receiver has: the exclusive or of the bytes, so it is exact.

A model that was trained on differs from its base in the last bits of its numbers, and where it was
not trained not at all. Signs, exponents and the first bits of mantissas become zeros, which a
compressor takes out. An arithmetic difference would be rounded.
"""

from __future__ import annotations

import numpy as np

from flstream.codecs.frame_codec import FramePlace


class Delta:
    """The step ``delta``: the exclusive or with the base's bytes, its own inverse."""

    name = "delta"
    needs_base = True

    def apply(
        self, data: memoryview, out: memoryview, place: FramePlace, base: memoryview | None
    ) -> None:
        """Write the exclusive or of the frame's and the base's bytes."""
        assert base is not None
        whole = len(data) // 8 * 8  # eight bytes at a time, and then the last few
        for part, code in ((slice(whole), "u8"), (slice(whole, None), "u1")):
            ours, theirs = np.frombuffer(data[part], code), np.frombuffer(base[part], code)
            np.bitwise_xor(ours, theirs, out=np.frombuffer(out[part], code))

    undo = apply
