"""A source derived from another: a model that is decoded, range by range."""

from __future__ import annotations

import threading

import numpy as np

from flstream.codecs.base_numbers import BaseNumbers
from flstream.codecs.block_codec import BlockCodec, decode_block
from flstream.codecs.coded_layout import CodedLayout, CodedTensor
from flstream.codecs.floats import number_type, quietly, store
from flstream.codecs.read_ahead import ReadAhead
from flstream.model.body import Scratch, Source


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
        random_access: Whether ranges may be read in any order; else only from front to back.
    """

    lendable = False
    extent = None
    changed = None
    deliver = None

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
        self.random_access = encoded.random_access
        self._reader = ReadAhead(encoded, frame)
        self._coded = coded
        self._codec = codec
        self._name = name
        self._base = base
        self._reading = threading.Lock()
        self._block: tuple[str, int] | None = None
        self._data = bytearray()

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """Return the bytes ``[start, stop)``, computed into ``scratch``.

        Raises:
            CodecError: The encoded body is no such model's; the message names the tensor.
        """
        room = scratch.take(stop - start)
        with self._reading:
            for spec in self.layout.overlapping(start, stop):
                first, last = max(start, spec.start), min(stop, spec.stop)
                part = room[first - start : last - start]
                tensor = self._coded.coded.get(spec.name)
                if tensor is None:
                    moved = self._coded.encoded.by_name[spec.name].start - spec.start
                    part[:] = self._reader.read(first + moved, last + moved)
                else:
                    self._fill(tensor, first, part)
        return [room]

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
