"""The layout of an encoded body, which follows from that of the model and the codec.

An encoded tensor keeps its name. It is a row of unsigned integers, as long as the model's elements,
and so at the same place in the order of the tensors: a model can be decoded from front to back
while its encoded form comes from front to back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flstream.codecs.block_codec import BLOCK, BlockCodec, BlockPlace
from flstream.errors import CodecError
from flstream.model.dtypes import BY_CODE, LARGEST
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout

# So that a row of eight-byte integers can be made of any blocks.
_ALIGNMENT = 8


class CodedTensor(NamedTuple):
    """A tensor whose numbers are encoded.

    Attributes:
        spec: The tensor in the model.
        encoded: The tensor in the encoded body.
        block_bytes: Bytes of an encoded block there, padding included.
    """

    spec: TensorInfo
    encoded: TensorInfo
    block_bytes: int

    def place(self, index: int) -> BlockPlace:
        """Return the place of a block."""
        offset = index * BLOCK
        count = min(BLOCK, self.spec.elements - offset)
        return BlockPlace(self.spec.name, self.spec.dtype, offset, count)

    def block_at(self, offset: int) -> tuple[BlockPlace, int, int]:
        """Return the block with a byte of the model's body, and where it begins and ends there."""
        size = BLOCK * BY_CODE[self.spec.dtype].itemsize
        index = (offset - self.spec.start) // size
        start = self.spec.start + index * size
        return self.place(index), start, min(start + size, self.spec.stop)

    def encoded_range(self, index: int) -> tuple[int, int]:
        """Return the range of a block in the encoded body, padding included."""
        start = self.encoded.start + index * self.block_bytes
        return start, min(start + self.block_bytes, self.encoded.stop)


class CodedLayout(NamedTuple):
    """The layouts of a model and of its encoded form.

    Attributes:
        model: Layout of the model.
        encoded: Layout of its encoded form, with the same names and aliases.
        coded: The tensors that are encoded, by name. All others are the same in both.
    """

    model: Layout
    encoded: Layout
    coded: Mapping[str, CodedTensor]

    @property
    def block_bytes(self) -> Mapping[str, int]:
        """Bytes of an encoded block of each tensor that is encoded, padding included."""
        return {name: tensor.block_bytes for name, tensor in self.coded.items()}

    @classmethod
    def of(cls, layout: Layout, codec: BlockCodec, lossless: Sequence[str]) -> CodedLayout:
        """Lay out a model's encoded form.

        Args:
            layout: Layout of the model, in the order of :meth:`Layout.of`.
            codec: The codec. Tensors that it would not make shorter are not encoded.
            lossless: Regular expressions; a tensor is not encoded if one is found in its name, or
                in one that is tied to it.

        Raises:
            CodecError: The codec, which may be the user's own, gives no length.
        """
        names: dict[str, list[str]] = {spec.name: [spec.name] for spec in layout.tensors}
        for alias, name in layout.aliases.items():
            names[name].append(alias)
        specs: list[TensorInfo] = []
        coded: dict[str, CodedTensor] = {}
        offset = 0
        for spec in layout.tensors:
            block = last = 0
            if spec.dtype in LARGEST and spec.nbytes and not _any(lossless, names[spec.name]):
                block, last = _lengths(codec, spec)
            size = spec.elements // BLOCK * block + last
            is_coded = 0 < size < spec.nbytes
            own = spec._replace(start=offset, stop=offset + (size if is_coded else spec.nbytes))
            if is_coded:
                itemsize = BY_CODE[spec.dtype].itemsize
                own = own._replace(dtype=f"U{8 * itemsize}", shape=(size // itemsize,))
                coded[spec.name] = CodedTensor(spec, own, block)
            specs.append(own)
            offset = own.stop
        return cls(layout, Layout(specs, layout.aliases), coded)


def _any(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns for name in names)


def _lengths(codec: BlockCodec, spec: TensorInfo) -> tuple[int, int]:
    """Return the lengths in bytes of a tensor's whole blocks and of a shorter last one."""
    rest = spec.elements % BLOCK
    # Of a single block that is short, the other length tells nothing.
    whole = _padded(codec, spec, BLOCK if spec.elements >= BLOCK else rest)
    return whole, _padded(codec, spec, rest) if rest else 0


def _padded(codec: BlockCodec, spec: TensorInfo, count: int) -> int:
    try:
        size = codec.nbytes(spec.dtype, count)
    except Exception as error:  # of the user's code
        raise CodecError(
            f"nbytes of {type(codec).__name__} raised {type(error).__name__} for tensor "
            f"{spec.name!r}: {error}; mend the codec"
        ) from error
    if not isinstance(size, int) or size < 1:
        raise CodecError(
            f"nbytes of {type(codec).__name__} returned {size!r} for {count} numbers of tensor "
            f"{spec.name!r}; return a number of bytes, at least 1"
        )
    return -(-size // _ALIGNMENT) * _ALIGNMENT
