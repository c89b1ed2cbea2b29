"""Exact codecs, which shorten a frame on the wire and leave no trace in a model.

How small a frame gets is known only once it is encoded, so these codecs are no sources: a sender
encodes each frame as it sends it, and a receiver decodes it into its place. What a frame becomes
follows from its bytes, its place in the body and the base alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flstream.errors import CodecError, FlstreamError
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, view_of
from flstream.streaming.coding import EncoderFor

if TYPE_CHECKING:
    import zstandard


def shuffle(
    data: memoryview, out: memoryview, layout: Layout, start: int, *, undo: bool = False
) -> None:
    """Write the first bytes of all numbers, then all second bytes, and so on.

    Numbers of a model are alike in their signs and exponents and differ in their last bits. Side by
    side, the bytes that are alike compress well. As in HDF5 and Blosc (Alted 2010, "Why modern CPUs
    are starving and what can be done about it", doi:10.1109/MCSE.2010.51). Elements that the
    frame's ends cut stay as they are.

    Args:
        data: Bytes of the frame.
        out: As many bytes to write, in other memory.
        layout: Layout of the body.
        start: Offset in bytes of the frame in the body.
        undo: Whether the bytes are shuffled, and are to be as they were.
    """
    reached = 0
    for run in layout.runs(start, start + len(data)):
        itemsize = BY_CODE[run.dtype].itemsize
        tensor = next(layout.overlapping(run.start, run.stop))
        whole = run.start + (tensor.start - run.start) % itemsize
        count = (run.stop - whole) // itemsize
        if itemsize == 1 or count <= 0:
            continue
        first, last = whole - start, whole - start + count * itemsize
        out[reached:first] = data[reached:first]
        reached = last
        taken, written = data[first:last], out[first:last]
        planes = np.frombuffer(taken if undo else written, np.uint8).reshape(itemsize, -1)
        if undo:
            elements = np.frombuffer(written, np.uint8)
            for byte, plane in enumerate(planes):
                elements[byte::itemsize] = plane
        else:
            words = np.frombuffer(taken, f"<u{itemsize}")
            for byte, plane in enumerate(planes):
                np.right_shift(words, 8 * byte, out=plane, casting="unsafe")
    out[reached:] = data[reached:]


class FrameCompressor(Protocol):
    """Compressor of bytes; a user's own codec is one, or a block codec."""

    def compress(self, data: memoryview) -> bytes:
        """Return a shorter form of the bytes, or a longer one where none is shorter."""
        ...

    def expand(self, payload: memoryview, size: int) -> bytes | memoryview:
        """Return the bytes that were compressed.

        Args:
            payload: Bytes that a peer declares to be from :meth:`compress`; they may be anything.
            size: How many bytes it has to be. No more may be made of it, whatever it says itself.

        Raises:
            CodecError: It is not the compressed form of so many bytes.
        """
        ...


class _Contexts(threading.local):
    """The library's state of a thread, which takes a megabyte and is slow to make."""

    encoder: zstandard.ZstdCompressor | None = None
    decoder: zstandard.ZstdDecompressor | None = None


@dataclass(frozen=True)
class Zstd:
    """The compressor ``zstd``: Zstandard (RFC 8878), by the library ``zstandard``.

    Attributes:
        level: Level of the compression, from 1 (fast) to 19; the library's levels below 1 are
            faster still.
    """

    level: int = 1
    _own: _Contexts = field(default_factory=_Contexts, repr=False, compare=False)

    def compress(self, data: memoryview) -> bytes:
        """Return the bytes as one Zstandard frame."""
        import zstandard

        if self._own.encoder is None:
            # Frames on the wire have digests of their own.
            self._own.encoder = zstandard.ZstdCompressor(level=self.level, write_checksum=False)
        return self._own.encoder.compress(data)

    def expand(self, payload: memoryview, size: int) -> bytes:
        """Return the bytes that were compressed: see :class:`FrameCompressor`.

        A frame says how many it has, and is unpacked only if that is what is due.
        """
        import zstandard

        if self._own.decoder is None:
            self._own.decoder = zstandard.ZstdDecompressor()
        try:
            if zstandard.get_frame_parameters(payload).content_size == size:
                return self._own.decoder.decompress(payload)
        except zstandard.ZstdError as error:
            raise CodecError(f"came as no Zstandard frame: {error}; send it again") from error
        raise CodecError(f"came as a Zstandard frame of other than {size} bytes")


class _Rooms(threading.local):
    """A thread's memory for the base's bytes, and for a step's input and output."""

    def __init__(self) -> None:
        self.base, *self.steps = Scratch(), Scratch(), Scratch()


@dataclass(frozen=True)
class FrameCodec:
    """Steps (``delta``, ``shuffle``) in order, then a compressor, of a body's frames."""

    steps: Sequence[str]
    compressor: FrameCompressor
    name: str
    rooms: _Rooms = field(default_factory=_Rooms, repr=False, compare=False)

    @property
    def needs_base(self) -> bool:
        """Whether any step needs the base's bytes."""
        return "delta" in self.steps


class FrameCoder:
    """Encoder and decoder of the frames of one body; several threads may use it.

    Memory is bounded by a few times the frame. ``source`` is a model that the other side may have,
    too, under ``name``; one of another layout is of no use. ``base`` is the name, empty for no
    base.
    """

    def __init__(
        self, codec: FrameCodec, layout: Layout, source: Source | None = None, name: str = ""
    ) -> None:
        self._codec = codec
        self._layout = layout
        fits = codec.needs_base and source is not None and source.layout == layout
        self._source = source if fits else None
        self.base = name if fits else ""

    def encode(self, data: memoryview, start: int, stop: int) -> bytes:
        """Encode the bytes ``[start, stop)``."""
        for index, step in enumerate(self._steps(self._source)):
            room = self._codec.rooms.steps[index % 2].take(len(data))
            self._apply(step, data, room, start, undo=False)
            data = room
        with self._naming(start, stop):
            payload = self._codec.compressor.compress(data)
        if not isinstance(payload, bytes):
            raise self._no_bytes(payload)
        return payload

    def decode(
        self, data: memoryview, out: memoryview, start: int, stop: int, *, has_base: bool
    ) -> None:
        """Decode what :meth:`encode` returned, or anything else: see :class:`Coder`."""
        size = len(out)
        with self._naming(start, stop):
            expanded = self._codec.compressor.expand(data, size)
        try:
            data = memoryview(expanded).cast("B")
        except TypeError as error:
            raise self._no_bytes(expanded) from error
        if len(data) != size:
            raise CodecError(
                f"{self._place(start, stop)}, came as {len(data)} bytes from the codec "
                f"{self._codec.name}; the sender and this process do not have the same codecs"
            )
        steps = self._steps(self._source if has_base else None)
        for index in reversed(range(len(steps))):
            room = self._codec.rooms.steps[index % 2].take(size) if index else out
            self._apply(steps[index], data, room, start, undo=True)
            data = room
        if not steps:
            out[:] = data

    def _steps(self, base: Source | None) -> list[str]:
        return [step for step in self._codec.steps if base is not None or step != "delta"]

    def _apply(
        self, step: str, data: memoryview, out: memoryview, start: int, *, undo: bool
    ) -> None:
        if step == "shuffle":
            shuffle(data, out, self._layout, start, undo=undo)
        elif self._source is not None:
            # A trained model differs from its base in the last bits of its numbers. An exclusive
            # or turns signs, exponents and the first bits of mantissas into zeros, which a
            # compressor takes out, and is its own inverse; a difference would be rounded.
            base = view_of(self._source, start, start + len(data), self._codec.rooms.base)
            ours, theirs, changed = (np.frombuffer(view, np.uint8) for view in (data, base, out))
            np.bitwise_xor(ours, theirs, out=changed)

    def _place(self, start: int, stop: int) -> str:
        """Describe a frame, with the name of the first tensor in it."""
        name = self._layout.name_at(start)
        return f"bytes {start} to {stop} of the body, from tensor {name!r} on"

    def _no_bytes(self, result: object) -> CodecError:
        return CodecError(
            f"the codec {self._codec.name} returned {type(result).__name__} for a frame; "
            "return bytes"
        )

    @contextmanager
    def _naming(self, start: int, stop: int) -> Iterator[None]:
        try:
            yield
        except CodecError as error:
            raise CodecError(f"{self._place(start, stop)}, {error}") from error
        except FlstreamError:
            raise
        except (Exception, SystemExit) as error:  # it may be the user's code
            raise CodecError(
                f"the codec {self._codec.name} raised {type(error).__name__} at "
                f"{self._place(start, stop)}: {error}; mend the codec"
            ) from error


def encoder_for(codec: FrameCodec, layout: Layout, bases: Mapping[str, Source]) -> EncoderFor:
    """Return the maker of encoders for a receiver.

    Args:
        codec: The codec.
        layout: Layout of the body that is sent.
        bases: Models that receivers may have, by the names that they give them.
    """
    return lambda name: FrameCoder(codec, layout, bases.get(name), name)
