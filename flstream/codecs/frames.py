"""Exact codecs, which make a frame on the wire smaller and leave no trace in a model.

How small a frame gets is known only once it is encoded, so these codecs are no sources: a sender
encodes each frame as it sends it, and a receiver decodes it into its place. What a frame becomes
follows from its bytes, its place in the body and the base alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from flstream.errors import CodecError, FlstreamError
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, view_of
from flstream.streaming.coding import DecoderFor, EncodedBytes, EncoderFor, FrameEncoder


class FramePlace(NamedTuple):
    """The place of a frame.

    Attributes:
        layout: Tensors of the body.
        start: Offset in bytes of the frame's first byte in the body.
        stop: Offset in bytes after its last byte.
    """

    layout: Layout
    start: int
    stop: int

    def __str__(self) -> str:
        """Return the place for messages, with the name of the first tensor in it."""
        name = self.layout.name_at(self.start)
        return f"bytes {self.start} to {self.stop} of the body, from tensor {name!r} on"


def delta(data: memoryview, base: memoryview, out: memoryview) -> None:
    """Write the exclusive or of a frame's and its base's bytes, which is its own inverse.

    A model that was trained on differs from its base in the last bits of its numbers, and where it
    was not trained not at all. Signs, exponents and the first bits of mantissas become zeros, which
    a compressor takes out. An arithmetic difference would be rounded.
    """
    whole = len(data) // 8 * 8  # eight bytes at a time, and then the last few
    for part, code in ((slice(whole), "u8"), (slice(whole, None), "u1")):
        ours, theirs = np.frombuffer(data[part], code), np.frombuffer(base[part], code)
        np.bitwise_xor(ours, theirs, out=np.frombuffer(out[part], code))


def shuffle(data: memoryview, out: memoryview, place: FramePlace, *, undo: bool) -> None:
    """Write the first bytes of all numbers of a type, then all second bytes, and so on.

    Numbers of a model are alike in their signs and exponents and differ in their last bits. Side by
    side, the bytes that are alike compress well. As in HDF5 and Blosc (Alted 2010, "Why modern CPUs
    are starving and what can be done about it", doi:10.1109/MCSE.2010.51). Elements that the
    frame's ends cut stay as they are.

    Args:
        data: Bytes of the frame.
        out: As many bytes to write, in other memory.
        place: Place of the frame.
        undo: Whether the bytes are shuffled, and are to be as they were.
    """
    reached = 0
    for start, stop, itemsize in _elements(place):
        out[reached:start] = data[reached:start]
        reached = stop
        given, made = data[start:stop], out[start:stop]
        planes = np.frombuffer(given if undo else made, np.uint8).reshape(itemsize, -1)
        if undo:
            whole = np.frombuffer(made, np.uint8)
            for byte, plane in enumerate(planes):
                whole[byte::itemsize] = plane
        else:
            words = np.frombuffer(given, f"<u{itemsize}")
            for byte, plane in enumerate(planes):
                np.right_shift(words, 8 * byte, out=plane, casting="unsafe")
    out[reached:] = data[reached:]


def _elements(place: FramePlace) -> Iterator[tuple[int, int, int]]:
    """Yield where in a frame whole elements of one type begin and end, and their size."""
    layout, start, stop = place
    for run in layout.runs(start, stop):
        itemsize = BY_CODE[run.dtype].itemsize
        tensor = next(layout.overlapping(run.start, run.stop))
        first = run.start + (tensor.start - run.start) % itemsize
        count = (run.stop - first) // itemsize
        if itemsize > 1 and count > 0:
            yield first - start, first - start + count * itemsize, itemsize


class FrameCompressor(Protocol):
    """What makes bytes fewer. A codec of the user's own is of this kind or a block codec."""

    def compress(self, data: memoryview) -> bytes:
        """Return the bytes in a shorter form, or in a longer one if they have none."""
        ...

    def expand(self, payload: memoryview, size: int) -> bytes | memoryview:
        """Return the bytes that were compressed.

        Args:
            payload: What another process says :meth:`compress` returned; it may be anything.
            size: How many bytes it has to be. No more may be made of it, whatever it says itself.

        Raises:
            CodecError: It is not the compressed form of so many bytes.
        """
        ...


class _Rooms(threading.local):
    """A thread's own memory for the base's bytes, for what a step reads and for what it writes."""

    def __init__(self) -> None:
        self.base, *self.steps = Scratch(), Scratch(), Scratch()


@dataclass(frozen=True)
class FrameCodec:
    """Steps and then a compressor. It may be used by several threads.

    Memory is bounded by a few times the frame.

    Attributes:
        steps: Changes that a sender makes, in order: ``delta`` and ``shuffle``.
        compressor: What makes them fewer.
        name: Name of the compressor, for messages.
    """

    steps: Sequence[str]
    compressor: FrameCompressor
    name: str
    _rooms: _Rooms = field(default_factory=_Rooms, repr=False, compare=False)

    @property
    def needs_base(self) -> bool:
        """Whether any step needs the base's bytes."""
        return "delta" in self.steps

    def encode(self, data: memoryview, place: FramePlace, base: Source | None) -> bytes | None:
        """Encode a frame.

        Args:
            data: Its bytes, consecutive in memory.
            place: Its place in the body.
            base: Body of the same layout that the receiver has too; None if it has none, and there
                is no delta then.

        Returns:
            The payload; None where it is not shorter, and the bytes are to be sent as they are.

        Raises:
            CodecError: The compressor, which may be the user's own, failed.
        """
        for index, step in enumerate(self._steps(base)):
            room = self._rooms.steps[index % 2].take(len(data))
            self._apply(step, data, room, place, base, undo=False)
            data = room
        made = self._called(lambda: self.compressor.compress(data), place)
        if not isinstance(made, bytes):
            raise self._no_bytes(made)
        return made if len(made) < len(data) else None

    def decode(
        self, payload: memoryview, out: memoryview, place: FramePlace, base: Source | None
    ) -> None:
        """Decode a payload into the frame's place.

        Args:
            payload: What :meth:`encode` returned, or anything else.
            out: Writable bytes, as many as the frame has.
            place: Place of the frame in the body.
            base: As for :meth:`encode`.

        Raises:
            CodecError: It is not the encoded form of such a frame; what is in ``out`` is then of no
                use.
        """
        size = len(out)
        made = self._called(lambda: self.compressor.expand(payload, size), place)
        try:
            data = memoryview(made).cast("B")
        except TypeError as error:
            raise self._no_bytes(made) from error
        if len(data) != size:
            raise CodecError(
                f"{place}, came as {len(data)} bytes from the codec {self.name}; the sender and "
                "this process do not have the same codecs"
            )
        steps = self._steps(base)
        for index in reversed(range(len(steps))):
            room = self._rooms.steps[index % 2].take(size) if index else out
            self._apply(steps[index], data, room, place, base, undo=True)
            data = room
        if not steps:
            out[:] = data

    def _steps(self, base: Source | None) -> list[str]:
        return [step for step in self.steps if base is not None or step != "delta"]

    def _apply(
        self,
        step: str,
        data: memoryview,
        out: memoryview,
        place: FramePlace,
        base: Source | None,
        *,
        undo: bool,
    ) -> None:
        if step == "shuffle":
            shuffle(data, out, place, undo=undo)
        elif base is not None:
            delta(data, view_of(base, place.start, place.stop, self._rooms.base), out)

    def _no_bytes(self, made: object) -> CodecError:
        return CodecError(
            f"the codec {self.name} returned {type(made).__name__} for a frame; return bytes"
        )

    def _called(
        self, call: Callable[[], bytes | memoryview], place: FramePlace
    ) -> bytes | memoryview:
        try:
            return call()
        except CodecError as error:
            raise CodecError(f"{place}, {error}") from error
        except FlstreamError:
            raise
        except Exception as error:  # it may be the user's code
            raise CodecError(
                f"the codec {self.name} raised {type(error).__name__} at {place}: {error}; "
                "mend the codec"
            ) from error


def encoder_for(codec: FrameCodec, layout: Layout, bases: Mapping[str, Source]) -> EncoderFor:
    """Return what makes the encoder for a receiver.

    Args:
        codec: The codec.
        layout: Layout of the body that is sent.
        bases: Models that receivers may have, by the names that they give them.
    """

    def encoder(name: str) -> FrameEncoder:
        base = _base_of(codec, layout, bases.get(name))

        def encode(data: memoryview, start: int, stop: int) -> EncodedBytes | None:
            made = codec.encode(data, FramePlace(layout, start, stop), base)
            return None if made is None else EncodedBytes(made, base is not None)

        return encode

    return encoder


class FrameDecoder:
    """Gives frames of a body back: see :class:`~flstream.streaming.coding.Decoder`.

    Args:
        codec: The codec.
        layout: Layout of the body.
        source: What may be known to the sender, too; None for nothing.
        name: Name by which the sender knows it.

    Attributes:
        base: The name; empty for no base.
    """

    def __init__(self, codec: FrameCodec, layout: Layout, source: Source | None, name: str) -> None:
        self._codec = codec
        self._layout = layout
        self._source = _base_of(codec, layout, source)
        self.base = "" if self._source is None else name

    def decode(
        self, data: memoryview, out: memoryview, start: int, stop: int, *, has_base: bool
    ) -> None:
        """Write the bytes ``[start, stop)`` into ``out``."""
        base = self._source if has_base else None
        self._codec.decode(data, out, FramePlace(self._layout, start, stop), base)


def decoder_for(
    codec: FrameCodec | None, base: Source | None = None, name: str = ""
) -> DecoderFor | None:
    """Return what makes the decoder for a body, once its layout is known; None without a codec.

    Args:
        codec: The codec.
        base: Model that the sender may have, too; None for none.
        name: Name of that model.
    """
    if codec is None:
        return None
    return lambda layout: FrameDecoder(codec, layout, base, name)


def _base_of(codec: FrameCodec, layout: Layout, base: Source | None) -> Source | None:
    """Return a base that a codec can use for a body, or None."""
    fits = codec.needs_base and base is not None and base.layout == layout
    return base if fits else None
