"""A model of any size, in tensors of mixed sizes like a transformer's, that nobody holds."""

from flstream.streaming import Layout
from flstream.units import parse_bytes

# Shares of the whole: an embedding, and blocks of large matrices, small ones and vectors.
EMBEDDING, MATRIX, VECTOR = 0.2, 0.0475, 0.0002
BLOCKS = 8


class Zeros:
    """A body of zeros, made as it is read: a factory may return one in place of a model."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.layout = Layout.of((name, "F32", (count,)) for name, count in counts.items())

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes [start, stop) of the body."""
        into[:] = bytes(stop - start)


def build(size: str | int, tensors: int | None = None) -> Zeros:
    """Zeros in float32: ``size`` bytes, a multiple of 4, in the mix or in so many equal tensors."""
    elements = parse_bytes(size) // 4
    if tensors is not None:
        each, more = divmod(elements, tensors)
        counts = {f"tensor.{i}": each + (i < more) for i in range(tensors)}
    else:
        counts = {"embedding.weight": int(EMBEDDING * elements)}
        for block in range(BLOCKS):
            counts[f"blocks.{block}.attention.weight"] = int(MATRIX * elements)
            counts[f"blocks.{block}.mlp.weight"] = int(MATRIX * elements)
            counts[f"blocks.{block}.norm.weight"] = int(VECTOR * elements)
            counts[f"blocks.{block}.norm.bias"] = int(VECTOR * elements)
        counts["head.weight"] = elements - sum(counts.values())
    return Zeros(counts)
