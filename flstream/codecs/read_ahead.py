"""Reading of sources for codecs: ranges from front to back, and the numbers of a base."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.codecs.block_codec import BlockPlace
from flstream.codecs.coded_layout import CodedLayout
from flstream.codecs.floats import Numbers, load
from flstream.errors import CodecError
from flstream.model.dtypes import BY_CODE
from flstream.model.source import Scratch, Source, views_of


class ReadAhead:
    """Reads ranges that follow each other, and keeps what was read beyond them.

    That is less than a frame. A source with random access is read where a range lies.

    Args:
        source: The source.
        frame: Bytes of which the ends of reads must be multiples, or the end of the body.
    """

    def __init__(self, source: Source, frame: int) -> None:
        self._source = source
        self._frame = frame
        self._scratch = Scratch()
        # Bytes [first, reached) of the source are in the buffer from its beginning on.
        self._buffer = bytearray()
        self._first = self._reached = 0

    def read(self, start: int, stop: int) -> memoryview:
        """Return the bytes ``[start, stop)``, valid until the next call.

        Raises:
            ValueError: They are no longer there, since the source is read once.
        """
        if getattr(self._source, "random_access", True):
            return joined(views_of(self._source, start, stop, self._scratch))
        if start < self._first:
            raise ValueError(f"bytes from {start} on are asked for again; read from front to back")
        if stop > self._reached:
            self._refill(start, stop)
        return memoryview(self._buffer)[start - self._first : stop - self._first]

    def _refill(self, start: int, stop: int) -> None:
        """Drop what lies before a range, and read up to the frame that ends it."""
        reach = min(-(-stop // self._frame) * self._frame, self._source.layout.nbytes)
        keep = min(start, self._reached)
        rest = self._buffer[keep - self._first : self._reached - self._first]
        size = len(rest) + reach - self._reached
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        self._buffer[: len(rest)] = rest
        room = memoryview(self._buffer)[len(rest) : size]
        self._source.read(self._reached, reach, room)
        self._first, self._reached = keep, reach


def joined(views: Sequence[memoryview]) -> memoryview:
    """Return consecutive views as one; a source has a block in more than one seldom."""
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


class BaseNumbers:
    """Numbers of a model that the sender and the receiver of an update both have.

    Args:
        base: The model, with random access. It may have tensors that the update lacks.
        coded: Layouts of the update and of its encoded form.

    Raises:
        CodecError: It lacks a tensor that is encoded; the message names it.
    """

    def __init__(self, base: Source, coded: CodedLayout) -> None:
        self._base = base
        self._scratch = Scratch()
        for name, tensor in coded.coded.items():
            there = base.layout.by_name.get(name)
            if there is None or there[1:3] != tensor.spec[1:3]:
                kind = f"{tensor.spec.dtype} and shape {list(tensor.spec.shape)}"
                raise CodecError(
                    f"tensor {name!r} has no tensor of its name with dtype {kind} in the base, so "
                    "its change cannot be encoded; name it in require_lossless"
                )

    def block(self, place: BlockPlace) -> Numbers:
        """Return the numbers of a block, valid until the next call."""
        itemsize = BY_CODE[place.dtype].itemsize
        start = self._base.layout.by_name[place.tensor].start + place.offset * itemsize
        data = joined(views_of(self._base, start, start + place.count * itemsize, self._scratch))
        return load(place.dtype, data)
