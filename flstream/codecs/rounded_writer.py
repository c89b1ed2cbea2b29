"""Writers of a model that round numbers, or their changes, as a codec does."""

from __future__ import annotations

import numpy as np

from flstream.codecs.block_codec import BLOCK, BlockPlace
from flstream.codecs.lossy import LossyCodec, change_of_block, changed, read_numbers
from flstream.errors import CodecError
from flstream.model.checkpoint import FileSink
from flstream.model.digests import BodyDigest
from flstream.model.dtypes import loaded, numbers_in, quietly, store
from flstream.model.joined import WritesRanges
from flstream.model.source import Scratch, Source


class RoundedWriter:
    """Writes the model that receivers decode, so that the server keeps the same.

    It is written from front to back. A block waits until all of it is there, and passes then.

    Args:
        target: Writer of the rounded model.
        codec: The codec.

    Attributes:
        layout: Layout of the model.
    """

    def __init__(self, target: WritesRanges, codec: LossyCodec) -> None:
        self.layout = target.layout
        self._target = target
        self._codec = codec
        _, self._coded = codec.coded(self.layout)
        self._digest = BodyDigest(self.layout)
        self._reached = 0
        # The beginning of a block whose end is yet to come.
        self._begun = bytearray()

    @property
    def digest(self) -> str:
        """Digest of the model, once all of it is written."""
        return self._digest.hexdigest()

    @quietly
    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the body, where the last ones ended.

        A ``start`` of 0 begins the body again.

        Raises:
            CodecError: The codec cannot encode a number, or gives other numbers for those that it
                has decoded, or none that is finite; the message names the tensor.
            CheckpointError: The disk refuses them.
        """
        if start == 0:
            self._digest, self._reached = BodyDigest(self.layout), 0
            self._begun = bytearray()
        if start != self._reached:
            raise ValueError(f"bytes from {start} on do not follow those up to {self._reached}")
        self._reached = stop = start + len(view)
        for spec in self.layout.overlapping(start, stop):
            first, last = max(start, spec.start), min(stop, spec.stop)
            part = view[first - start : last - start]
            if (tensor := self._coded.get(spec.name)) is None:
                self._pass(first, part)
                continue
            while len(part):
                place, begin, end = tensor.block_at(first)
                count = min(end - first, len(part))
                block, part, first = part[:count], part[count:], first + count
                if count < end - begin:
                    self._begun += block
                    block = memoryview(self._begun)
                if first == end:
                    self._pass(begin, self._rounded(block, place))
                    self._begun = bytearray()

    def _rounded(self, data: memoryview, place: BlockPlace) -> memoryview:
        """Round a block."""
        rounded, name = self._decoded(data, place), self._codec.name
        if not self._codec.is_own:
            return rounded
        before, after = (loaded(place.dtype, view) for view in (data, rounded))
        lost = np.isfinite(before) & ~np.isfinite(after)
        if lost.any():
            index = int(np.argmax(lost))
            raise CodecError(
                f"the codec {name} decodes {before[index]}, element {place.offset + index} of "
                f"tensor {place.tensor!r}, as {after[index]}; have it give a finite number, or "
                "raise CodecError"
            )
        if self._decoded(rounded, place) != rounded:
            raise CodecError(
                f"the codec {name} changes numbers of tensor {place.tensor!r} that it has decoded "
                "itself, so that sites would not receive the model that is kept; have it give them "
                "back as they are, or use it for updates alone"
            )
        return rounded

    def _decoded(self, data: memoryview, place: BlockPlace) -> memoryview:
        encoded = self._codec.encode_block(loaded(place.dtype, data), place)
        numbers = self._codec.decode_block(memoryview(encoded), place)
        out = memoryview(bytearray(len(data)))
        store(numbers, numbers_in(place.dtype, out))
        return out

    def _pass(self, start: int, data: memoryview) -> None:
        self._target.write(start, data)
        self._digest.update([data])


class ChangesWriter(RoundedWriter):
    """Writes the model that receivers decode of its changes, and the encoded changes beside it.

    Args:
        target: Writer of the rounded model.
        codec: The codec.
        base: The model that it was made of, with random access.
        changes: File of the changes in the codec's form; tensors that it does not encode are whole.
    """

    def __init__(
        self, target: WritesRanges, codec: LossyCodec, base: Source, changes: FileSink
    ) -> None:
        super().__init__(target, codec)
        self._base, self._changes = base, changes
        self._scratch = Scratch()

    def _rounded(self, data: memoryview, place: BlockPlace) -> memoryview:
        base = read_numbers(self._base, place, self._scratch)
        encoded = self._codec.encode_block(change_of_block(loaded(place.dtype, data), base), place)
        start, stop = self._coded[place.tensor].encoded_range(place.offset // BLOCK)
        self._changes.write(start, memoryview(encoded.ljust(stop - start, b"\0")))
        out = memoryview(bytearray(len(data)))
        numbers = changed(base, self._codec.decode_block(memoryview(encoded), place), place)
        store(numbers, numbers_in(place.dtype, out))
        return out

    def _pass(self, start: int, data: memoryview) -> None:
        super()._pass(start, data)
        for spec in self.layout.overlapping(start, start + len(data)):
            if spec.name not in self._coded:
                first, last = max(start, spec.start), min(start + len(data), spec.stop)
                own = self._changes.layout.by_name[spec.name].start
                self._changes.write(own + first - spec.start, data[first - start : last - start])
