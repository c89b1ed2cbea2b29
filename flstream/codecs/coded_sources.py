"""Sources derived from others, range by range: a model as encoded, and one that is decoded."""

from __future__ import annotations

import threading

import numpy as np

from flstream.codecs.block_codec import BlockCodec, BlockPlace, decode_block, encode_block
from flstream.codecs.coded_layout import CodedLayout, CodedTensor
from flstream.codecs.floats import Numbers, load, number_type, quietly, store
from flstream.codecs.read_ahead import BaseNumbers, ReadAhead, joined
from flstream.errors import CodecError
from flstream.model.source import Scratch, Source, views_of


class EncodedSource:
    """A body as a codec encodes it.

    It holds a block at a time. Ranges may be read in any order if those of the model may, and by
    several threads, which wait for each other.

    Args:
        source: The model.
        coded: Layouts of both.
        codec: The codec.
        name: Its name, for messages.
        base: Numbers from which differences are encoded; None to encode the model's own.
        blanks: Whether a block that cannot be encoded is zeros.

    Attributes:
        layout: Tensors of the encoded body.
    """

    def __init__(
        self,
        source: Source,
        coded: CodedLayout,
        codec: BlockCodec,
        name: str,
        base: BaseNumbers | None = None,
        *,
        blanks: bool = False,
    ) -> None:
        self.layout = coded.encoded
        self._source = source
        self._coded = coded
        self._codec = codec
        self._name = name
        self._base = base
        self._blanks = blanks
        self._reading = threading.Lock()
        self._scratch = Scratch()
        self._block: tuple[str, int] | None = None
        self._data = b""

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Compute the bytes ``[start, stop)``.

        Raises:
            CodecError: The codec cannot encode a number; the message has its tensor and place.
        """
        with self._reading:
            for spec in self.layout.overlapping(start, stop):
                first, last = max(start, spec.start), min(stop, spec.stop)
                part = into[first - start : last - start]
                tensor = self._coded.coded.get(spec.name)
                if tensor is None:
                    moved = self._coded.model.by_name[spec.name].start - spec.start
                    self._source.read(first + moved, last + moved, part)
                else:
                    self._fill(tensor, first - spec.start, part)

    def _fill(self, tensor: CodedTensor, offset: int, room: memoryview) -> None:
        """Put the bytes of an encoded tensor, from an offset in it on, into a view."""
        while len(room):
            index, inside = divmod(offset, tensor.block_bytes)
            data = memoryview(self._encoded(tensor, index))[inside : inside + len(room)]
            room[: len(data)] = data
            room, offset = room[len(data) :], offset + len(data)

    def _encoded(self, tensor: CodedTensor, index: int) -> bytes:
        """Return the bytes of an encoded block; the last is kept, as the next range may go on."""
        if self._block != (tensor.spec.name, index):
            data = joined(views_of(self._source, *tensor.model_range(index), self._scratch))
            place = tensor.place(index)
            numbers = difference(load(place.dtype, data), self._base, place)
            try:
                made = encode_block(self._codec, self._name, numbers, place)
            except CodecError:
                if not self._blanks:
                    raise
                made = b""
            start, stop = tensor.encoded_range(index)
            self._block, self._data = (tensor.spec.name, index), made.ljust(stop - start, b"\0")
        return self._data


@quietly
def difference(numbers: Numbers, base: BaseNumbers | None, place: BlockPlace) -> Numbers:
    """Return the differences of a block's numbers from the base's; the numbers if there is none."""
    if base is None:
        return numbers
    found = np.subtract(numbers, base.block(place), dtype=number_type(place.dtype))
    found.flags.writeable = False
    return found


class DecodedSource:
    """The model that an encoded body stands for.

    It holds a block at a time, and of a body that is read from front to back what it was sent
    beyond that. Several threads that read it wait for each other.

    Args:
        encoded: The encoded body.
        coded: Layouts of both.
        codec: The codec.
        name: Its name, for messages.
        frame: Bytes of which the ends of reads must be multiples, where the encoded body is read
            from front to back.
        base: Numbers that are added to those that are decoded; None for none.

    Attributes:
        layout: Tensors of the model.
    """

    def __init__(
        self,
        encoded: Source,
        coded: CodedLayout,
        codec: BlockCodec,
        name: str,
        frame: int,
        base: BaseNumbers | None = None,
    ) -> None:
        self.layout = coded.model
        self._reader = ReadAhead(encoded, frame)
        self._coded = coded
        self._codec = codec
        self._name = name
        self._base = base
        self._reading = threading.Lock()
        self._block: tuple[str, int] | None = None
        self._data = bytearray()

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Compute the bytes ``[start, stop)``.

        Raises:
            CodecError: The encoded body is no such model's; the message names the tensor.
        """
        with self._reading:
            for spec in self.layout.overlapping(start, stop):
                first, last = max(start, spec.start), min(stop, spec.stop)
                part = into[first - start : last - start]
                tensor = self._coded.coded.get(spec.name)
                if tensor is None:
                    moved = self._coded.encoded.by_name[spec.name].start - spec.start
                    part[:] = self._reader.read(first + moved, last + moved)
                else:
                    self._fill(tensor, first, part)

    def _fill(self, tensor: CodedTensor, start: int, room: memoryview) -> None:
        """Put the bytes of a tensor, from an offset of the body on, into a view."""
        size = tensor.model_range(0)[1] - tensor.spec.start
        while len(room):
            index = (start - tensor.spec.start) // size
            first, last = tensor.model_range(index)
            if start == first and len(room) >= last - first:
                self._decode(tensor, index, room[: last - first])
                count = last - first
            else:
                if self._block != (tensor.spec.name, index):
                    self._block, self._data = None, bytearray(last - first)
                    self._decode(tensor, index, memoryview(self._data))
                    self._block = tensor.spec.name, index
                count = min(last - start, len(room))
                room[:count] = memoryview(self._data)[start - first : start - first + count]
            room, start = room[count:], start + count

    @quietly
    def _decode(self, tensor: CodedTensor, index: int, out: memoryview) -> None:
        place = tensor.place(index)
        data = self._reader.read(*tensor.encoded_range(index))
        own = data[: self._codec.nbytes(place.dtype, place.count)]
        numbers = decode_block(self._codec, self._name, own, place)
        if self._base is not None:
            # So that no change is none of a zero's sign either: -0.0 + 0.0 is 0.0.
            numbers = np.where(numbers == 0, numbers.dtype.type(-0.0), numbers)
            numbers = np.add(numbers, self._base.block(place), dtype=number_type(place.dtype))
        store(place.dtype, numbers, out)
