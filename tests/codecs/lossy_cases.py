"""Codecs with a loss, and models for them."""

import numpy as np
import torch

from flstream.codecs.cast import Cast
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.quantised import Quantised
from flstream.codecs.sparse import Ternary, TopK
from flstream.model.memory import MemoryBody
from flstream.model.source import Source
from tests.support import tensors_of

CODECS = {
    "cast bf16": Cast("bf16"),
    "cast f16": Cast("f16"),
    "int8": Quantised(8, 256),
    "int8, large groups": Quantised(8, 4096),
    "int4": Quantised(4, 64),
    "topk": TopK(0.01),
    "topk, a third": TopK(1 / 3),
    "ternary": Ternary(0.04),
}


def lossy(name: str, *require_lossless: str) -> LossyCodec:
    return LossyCodec(CODECS[name], name, require_lossless)


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of several blocks, of parts of one, and of kinds that pass."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.02

    return {
        "embed.weight": normal(411, 333),
        "lm_head.weight": normal(300, 70),
        "half": normal(70_001).bfloat16(),
        "short": normal(65_536 + 16_384).half(),
        "double": normal(500).double(),
        "small": normal(500).to(torch.float8_e5m2),
        "norm.weight": normal(1000) + 1,
        "scalar": torch.tensor(1.5),
        "one": normal(1),
        "odd": normal(17),
        "empty": torch.empty(0, 3),
        "complex": torch.randn(70, dtype=torch.complex64, generator=generator),
        "steps": torch.arange(33),
        "mask": torch.arange(13) % 3 == 0,
    }


def rounded(codec: LossyCodec, source: Source) -> Source:
    """A model as it is once it was encoded and decoded."""
    return codec.decode(codec.encode(source), source.layout)


def decoded(name: str, tensors, *require_lossless: str) -> dict[str, torch.Tensor]:
    return tensors_of(rounded(lossy(name, *require_lossless), MemoryBody.of(tensors)))


class Narrow:
    """A codec of a user's own: float16, in which the largest of float32 are infinite."""

    def nbytes(self, dtype, count):
        return 2 * count

    def encode(self, numbers, place):
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).tobytes()

    def decode(self, data, place):
        return np.frombuffer(data, np.float16).astype(np.float32)
