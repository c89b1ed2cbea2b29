"""The codecs of one direction, as a job file lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from flstream.codecs.block_codec import BlockCodec
from flstream.codecs.cast import Cast
from flstream.codecs.frames import FrameCodec, FrameCompressor, Zstd
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.quantised import Quantised
from flstream.codecs.sparse import Ternary, TopK
from flstream.job.code import make
from flstream.job.codecs import CodecPlan

BLOCK_CODECS: Mapping[str, Callable[..., BlockCodec]] = {
    "cast": Cast,
    "int8": partial(Quantised, 8),
    "int4": partial(Quantised, 4),
    "topk": TopK,
    "ternary": Ternary,
}
"""Built-in codecs with a loss, by name."""

STEPS = ("delta", "shuffle")
"""Built-in steps of frames, by name."""

COMPRESSORS: Mapping[str, Callable[..., FrameCompressor]] = {"zstd": Zstd}
"""Built-in compressors of frames, by name."""


class CodecChain(NamedTuple):
    """Codecs of one direction.

    Attributes:
        lossy: Codec that encodes a body as another body, first; None for none.
        frames: Codec of the encoded body's frames; None for none.
        changes: Codec that encodes a model's changes from the one before it; None for none.
    """

    lossy: LossyCodec | None = None
    frames: FrameCodec | None = None
    changes: LossyCodec | None = None


def chain_of(plan: CodecPlan) -> CodecChain:
    """Make the codecs of one direction.

    Args:
        plan: The codecs, in an order that a job file accepts.

    Raises:
        Exception: Whatever the code of a user's own class raises.
    """
    lossy: LossyCodec | None = None
    steps: list[str] = []
    frames: FrameCodec | None = None
    for spec in plan.specs:
        args = dict(spec.args)
        own: Any = make(spec.type, args) if ":" in spec.type else None
        if spec.type in STEPS:
            steps.append(spec.type)
        elif spec.type in COMPRESSORS or hasattr(own, "compress"):
            compressor = own or COMPRESSORS[spec.type](**args)
            frames = FrameCodec(tuple(steps), compressor, spec.name)
        else:
            codec = own or BLOCK_CODECS[spec.type](**args)
            if plan.of_models and own is None and isinstance(codec, Quantised):
                codec = replace(codec, of_models=True)
            lossy = LossyCodec(codec, spec.name, tuple(plan.require_lossless), own is not None)
    if plan.of_changes:
        return CodecChain(None, frames, changes=lossy)
    return CodecChain(lossy, frames)
