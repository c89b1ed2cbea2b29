"""Codecs with a loss for whole models: bodies on both sides, and rounded blocks.

The layout of an encoded body follows from that of the model and the codec. An encoded tensor keeps
its name. It is a row of unsigned integers, as long as the model's elements, and so at the same
place in the order of the tensors: a model can be decoded from front to back while its encoded form
comes from front to back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flstream.codecs.block_codec import BLOCK, BlockCodec, BlockPlace, codec_code
from flstream.codecs.blocks import Blockwise
from flstream.errors import CodecError
from flstream.model.dtypes import (
    BY_CODE,
    LARGEST,
    Numbers,
    loaded,
    number_type,
    numbers_in,
    quietly,
    store,
    unit,
)
from flstream.model.layout import Layout, TensorInfo
from flstream.model.source import Scratch, Source, view_of

# So that a row of eight-byte integers can be made of any blocks.
_ALIGNMENT = 8


class CodedTensor(NamedTuple):
    """A tensor in the model and as encoded, in blocks of ``block_bytes`` with padding."""

    spec: TensorInfo
    encoded: TensorInfo
    block_bytes: int

    def place(self, index: int) -> BlockPlace:
        """Return the place of a block."""
        offset = index * BLOCK
        count = min(BLOCK, self.spec.elements - offset)
        return BlockPlace(self.spec.name, self.spec.dtype, offset, count)

    def block_at(self, offset: int) -> tuple[BlockPlace, int, int]:
        """Return the block with a byte of the model's body, and its start and stop there."""
        size = BLOCK * BY_CODE[self.spec.dtype].itemsize
        index = (offset - self.spec.start) // size
        start = self.spec.start + index * size
        return self.place(index), start, min(start + size, self.spec.stop)

    def encoded_range(self, index: int) -> tuple[int, int]:
        """Return the range of a block in the encoded body, padding included."""
        start = self.encoded.start + index * self.block_bytes
        return start, min(start + self.block_bytes, self.encoded.stop)


EncodeBlock = Callable[[Numbers, BlockPlace], bytes]
"""Function from a block's numbers and their place to the bytes of its encoded form."""


@dataclass(frozen=True)
class LossyCodec:
    """A codec of blocks, for the tensors that it may change.

    Those are of floating point numbers, match no pattern and become shorter. All others pass.

    Attributes:
        codec: Codec of blocks.
        name: Its name, for messages: `int8`, or `mine.py:Codec`.
        require_lossless: Regular expressions; a tensor passes unchanged if one is found in its
            name, or in one that is tied to it.
        is_own: Whether the codec is the user's own.
    """

    codec: BlockCodec
    name: str
    require_lossless: Sequence[str] = ()
    is_own: bool = False

    @property
    def for_updates(self) -> bool:
        """Whether the codec takes differences from a model alone, with error feedback."""
        return bool(getattr(self.codec, "for_updates", False))

    def coded(self, layout: Layout) -> tuple[Layout, Mapping[str, CodedTensor]]:
        """Return the layout of a model's encoded form, and the encoded tensors.

        Those are encoded that become shorter; all others are the same in both bodies. Names and
        aliases are the model's.

        Raises:
            CodecError: The codec, which may be the user's own, gives no length.
        """
        passed = {
            name
            for name, names in layout.all_names.items()
            if any(re.search(regex, alias) for regex in self.require_lossless for alias in names)
        }
        specs: list[TensorInfo] = []
        coded: dict[str, CodedTensor] = {}
        offset = 0
        for spec in layout.tensors:
            block = last = 0
            if spec.dtype in LARGEST and spec.nbytes and spec.name not in passed:
                rest = spec.elements % BLOCK
                last = _padded(self.codec, spec, rest) if rest else 0
                # A tensor of a single short block needs no length of a whole block.
                block = _padded(self.codec, spec, BLOCK) if spec.elements >= BLOCK else last
            size = spec.elements // BLOCK * block + last
            is_coded = 0 < size < spec.nbytes
            own = spec._replace(start=offset, stop=offset + (size if is_coded else spec.nbytes))
            if is_coded:
                itemsize = BY_CODE[spec.dtype].itemsize
                own = own._replace(dtype=f"U{8 * itemsize}", shape=(size // itemsize,))
                coded[spec.name] = CodedTensor(spec, own, block)
            specs.append(own)
            offset = own.stop
        return Layout(specs, layout.aliases), coded

    def encoded(self, layout: Layout) -> Layout:
        """Return the layout of a model's encoded form: no longer than the model."""
        return self.coded(layout)[0]

    def encode(
        self, source: Source, base: Source | None = None, block: EncodeBlock | None = None
    ) -> Source:
        """Return a model's encoded form: a source that is computed range by range.

        Nothing is kept for the next one: see
        :func:`~flstream.codecs.error_feedback.encode_with_feedback`.

        Args:
            source: The model, or an update.
            base: Model with random access that the receiver has, too. What is encoded is then the
                difference from it; tensors that pass are still the source's own.
            block: Encodes a block; :meth:`encode_block` by default.

        Raises:
            CodecError: The base lacks a tensor that is encoded; the message names it.
        """
        layout, coded = self.coded(source.layout)
        if base is not None:
            ours, theirs = (body.layout.subset(coded, ()) for body in (source, base))
            if flaw := ours.difference(theirs):
                raise CodecError(
                    f"the codec {self.name} encodes changes from a base, in which {flaw}; name the "
                    "tensor in require_lossless"
                )
        encode_block = block or self.encode_block
        scratch, base_scratch = Scratch(), Scratch()

        def fill(spec: TensorInfo, index: int, out: memoryview) -> None:
            place = coded[spec.name].place(index)
            numbers = read_numbers(source, place, scratch)
            if base is not None:
                numbers = change_of_block(numbers, read_numbers(base, place, base_scratch))
            out[:] = encode_block(numbers, place).ljust(len(out), b"\0")

        sizes = {name: tensor.block_bytes for name, tensor in coded.items()}
        return Blockwise(source, layout, sizes, fill)

    def decode(self, encoded: Source, layout: Layout, base: Source | None = None) -> Source:
        """Return the model that an encoded form stands for, computed range by range.

        Args:
            encoded: The encoded form, which is read from front to back if the model is.
            layout: Layout of the model.
            base: Model with which it was encoded, if it was with one; it has all tensors of the
                layout. Its numbers are added, and the sum is rounded once to the tensor's type.

        Raises:
            CodecError: The encoded form is not laid out as one of such a model; the message names
                the first tensor that differs.
        """
        expected, coded = self.coded(layout)
        if difference := expected.difference(encoded.layout):
            raise CodecError(
                f"what came is not the model as the codec {self.name} encodes it: {difference}"
            )
        scratch, base_scratch = Scratch(), Scratch()

        @quietly
        def fill(spec: TensorInfo, index: int, out: memoryview) -> None:
            tensor = coded[spec.name]
            place = tensor.place(index)
            data = view_of(encoded, *tensor.encoded_range(index), scratch)
            numbers = self.decode_block(data[: self.codec.nbytes(place.dtype, place.count)], place)
            if base is not None:
                numbers = changed(read_numbers(base, place, base_scratch), numbers, place)
            store(numbers, numbers_in(place.dtype, out))

        sizes = {name: BLOCK * unit(tensor.spec.dtype) for name, tensor in coded.items()}
        return Blockwise(encoded, layout, sizes, fill)

    def encode_block(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Encode a block; a CodecError says that a user's own codec failed."""
        with codec_code(f"the codec {self.name}", f"at tensor {place.tensor!r}"):
            size = self.codec.nbytes(place.dtype, place.count)
            data = self.codec.encode(numbers, place)
        if not isinstance(data, bytes) or len(data) != size:
            what = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
            raise CodecError(
                f"the codec {self.name} returned {what} for a block of {place.count} numbers of "
                f"tensor {place.tensor!r}; return {size} bytes, as its nbytes says"
            )
        return data

    def comparable_block(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Encode a block for a comparison; a block that cannot be encoded is empty."""
        try:
            return self.encode_block(numbers, place)
        except CodecError:
            return b""

    def decode_block(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Decode a block; a CodecError says that a user's own codec failed."""
        with codec_code(f"the codec {self.name}", f"at tensor {place.tensor!r}"):
            numbers = self.codec.decode(data, place)
        is_real = isinstance(numbers, np.ndarray) and numbers.dtype.kind == "f"
        if not is_real or numbers.shape != (place.count,):
            shape = list(np.shape(numbers))
            raise CodecError(
                f"the codec {self.name} returned {type(numbers).__name__} of shape {shape} for a "
                f"block of tensor {place.tensor!r}; return {place.count} floats"
            )
        return numbers


def read_numbers(source: Source, place: BlockPlace, scratch: Scratch) -> Numbers:
    """Return a block's numbers from a body, valid until ``scratch`` is used."""
    spec = source.layout.by_name[place.tensor]
    itemsize = BY_CODE[spec.dtype].itemsize
    start = spec.start + place.offset * itemsize
    return loaded(spec.dtype, view_of(source, start, start + place.count * itemsize, scratch))


def changed(base: Numbers, changes: Numbers, place: BlockPlace) -> Numbers:
    """Return a block's numbers of a base after changes, to be rounded once to the tensor's type."""
    # So that no change is none of a zero's sign either: -0.0 + 0.0 is 0.0.
    changes = np.where(changes == 0, changes.dtype.type(-0.0), changes)
    numbers: Numbers = np.add(changes, base, dtype=number_type(place.dtype))
    return numbers


@quietly
def change_of_block(numbers: Numbers, base: Numbers) -> Numbers:
    """Return the changes of a block's numbers from those of a base."""
    changes: Numbers = numbers - base
    changes.flags.writeable = False
    return changes


def _padded(codec: BlockCodec, spec: TensorInfo, count: int) -> int:
    """Return the padded length in bytes of an encoded block."""
    what = f"nbytes of {type(codec).__name__}"
    with codec_code(what, f"for tensor {spec.name!r}"):
        size = codec.nbytes(spec.dtype, count)
    if not isinstance(size, int) or size < 1:
        raise CodecError(
            f"{what} returned {size!r} for {count} numbers of tensor "
            f"{spec.name!r}; return a number of bytes, at least 1"
        )
    return -(-size // _ALIGNMENT) * _ALIGNMENT
