"""Exact codecs, which make a frame on the wire smaller and leave no trace in a model.

How small a frame gets is known only once it is encoded, so these codecs are no sources: a sender
encodes each frame as it sends it, and a receiver decodes it into its place. What a frame becomes
follows from its bytes, its place in the body and the base alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from flstream.errors import CodecError, FlstreamError
from flstream.model.layout import Layout
from flstream.model.source import Scratch


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


class FrameStep(Protocol):
    """A reversible change of a frame's bytes that keeps their number.

    Attributes:
        name: Its name in a job file.
        needs_base: Whether it needs the base's bytes of the same range.
    """

    @property
    def name(self) -> str:
        """Its name in a job file."""
        ...

    @property
    def needs_base(self) -> bool:
        """Whether it needs the base's bytes of the same range."""
        ...

    def apply(
        self, data: memoryview, out: memoryview, place: FramePlace, base: memoryview | None
    ) -> None:
        """Write the changed bytes.

        Args:
            data: Bytes of the frame.
            out: As many bytes to write, in other memory.
            place: Place of the frame.
            base: Bytes of the base in the same range; None if there is no base.
        """
        ...

    def undo(
        self, data: memoryview, out: memoryview, place: FramePlace, base: memoryview | None
    ) -> None:
        """Write the bytes that :meth:`apply` was given: see there."""
        ...


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


class _StepRooms(threading.local):
    """A thread's own memory for what a step reads, and for what it writes."""

    def __init__(self) -> None:
        self.scratches = Scratch(), Scratch()


@dataclass(frozen=True)
class FrameCodec:
    """Steps and then a compressor. It may be used by several threads.

    Memory is bounded by a few times the frame.

    Attributes:
        steps: Changes of the bytes, in the order in which a sender makes them.
        compressor: What makes them fewer.
        name: Name of the compressor, for messages.
    """

    steps: Sequence[FrameStep]
    compressor: FrameCompressor
    name: str
    _rooms: _StepRooms = field(default_factory=_StepRooms, repr=False, compare=False)

    @property
    def needs_base(self) -> bool:
        """Whether any step needs the base's bytes."""
        return any(step.needs_base for step in self.steps)

    def encode(
        self, data: memoryview, place: FramePlace, base: memoryview | None = None
    ) -> bytes | None:
        """Encode a frame.

        Args:
            data: Its bytes, consecutive in memory.
            place: Its place in the body.
            base: Bytes of the base in the same range, which the receiver has too; None if it has
                none. A step that needs them is then left out.

        Returns:
            The payload; None where it is not shorter, and the bytes are to be sent as they are.

        Raises:
            CodecError: The compressor, which may be the user's own, failed.
        """
        for index, step in enumerate(self._chosen(base)):
            room = self._room(index, len(data))
            step.apply(data, room, place, base)
            data = room
        made = self._called(lambda: self.compressor.compress(data), place)
        if not isinstance(made, bytes):
            raise CodecError(
                f"the codec {self.name} returned {type(made).__name__} for a frame; return bytes"
            )
        return made if len(made) < len(data) else None

    def decode(
        self,
        payload: memoryview,
        out: memoryview,
        place: FramePlace,
        base: memoryview | None = None,
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
            raise CodecError(
                f"the codec {self.name} returned {type(made).__name__} for a frame; return bytes"
            ) from error
        if len(data) != size:
            raise CodecError(
                f"{place}, came as {len(data)} bytes from the codec {self.name}; the sender and "
                "this process do not have the same codecs"
            )
        steps = self._chosen(base)
        for index in reversed(range(len(steps))):
            room = out if index == 0 else self._room(index, size)
            steps[index].undo(data, room, place, base)
            data = room
        if not steps:
            out[:] = data

    def _room(self, index: int, size: int) -> memoryview:
        return self._rooms.scratches[index % 2].take(size)

    def _chosen(self, base: memoryview | None) -> list[FrameStep]:
        return [step for step in self.steps if base is not None or not step.needs_base]

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
