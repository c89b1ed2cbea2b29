"""Zstandard, by the library ``zstandard``: RFC 8878."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flstream.errors import CodecError
from flstream.model.source import Scratch

if TYPE_CHECKING:
    import zstandard

# A decoder's memory for a frame of the wire, whatever a payload asks for: the least that the format
# has its decoders offer (RFC 8878, section 3.1.1.1.2).
_LEAST_WINDOW = 8 << 20


class _Contexts(threading.local):
    """A thread's own state of the library: it takes a megabyte, and longer to make than to use."""

    def __init__(self) -> None:
        self.encoder: zstandard.ZstdCompressor | None = None
        self.decoder: zstandard.ZstdDecompressor | None = None
        self.scratch = Scratch()


@dataclass(frozen=True)
class Zstd:
    """The compressor ``zstd``.

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

    def expand(self, payload: memoryview, size: int) -> memoryview:
        """Return the bytes that were compressed: see :class:`FrameCompressor`.

        They go into memory of the size that is due, and no more is made of the payload than that.
        They are valid until the thread's next call.
        """
        import zstandard

        if self._own.decoder is None:
            self._own.decoder = zstandard.ZstdDecompressor(max_window_size=_LEAST_WINDOW)
        room = self._own.scratch.take(size + 1)
        try:
            with self._own.decoder.stream_reader(payload) as reader:
                count = 0
                while count <= size and (more := reader.readinto(room[count:])):
                    count += more
        except zstandard.ZstdError as error:
            raise CodecError(f"came as no Zstandard frame: {error}; send it again") from error
        if count != size:
            length = "more" if count > size else str(count)
            raise CodecError(f"came as a Zstandard frame of {length} bytes instead of {size}")
        return room[:size]
