"""Frames of a body that are encoded with a codec, on the sender's side and on the receiver's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flstream.codecs.frame_codec import FrameCodec, FramePlace
from flstream.codecs.read_ahead import joined
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, views_of
from flstream.streaming.coding import EncodedBytes, EncoderFor, FrameEncoder


class BodyEncoder:
    """Encodes frames of a body.

    Args:
        codec: The codec.
        layout: Layout of the body.
        base: What the receiver has, too, of the same layout; None for nothing.
    """

    def __init__(self, codec: FrameCodec, layout: Layout, base: Source | None) -> None:
        self._codec = codec
        self._layout = layout
        self._base = base
        self._scratch = Scratch()

    def __call__(self, data: memoryview, start: int, stop: int) -> EncodedBytes | None:
        """Encode the bytes ``[start, stop)``; return None where that makes them no fewer."""
        base = _bytes_of(self._base, start, stop, self._scratch)
        made = self._codec.encode(data, FramePlace(self._layout, start, stop), base)
        return None if made is None else EncodedBytes(made, base is not None)


class BodyDecoder:
    """Gives frames of a body back: see :class:`~flstream.streaming.coding.FrameDecoder`.

    Args:
        codec: The codec.
        layout: Layout of the body.
        base: What may be known to the sender, too, of the same layout; None for nothing.
        name: Name by which the sender knows it.

    Attributes:
        base: The name; empty for no base.
    """

    def __init__(
        self, codec: FrameCodec, layout: Layout, base: Source | None = None, name: str = ""
    ) -> None:
        has_base = codec.needs_base and base is not None and base.layout == layout
        self.base = name if has_base else ""
        self._codec = codec
        self._layout = layout
        self._source = base if has_base else None
        self._scratch = Scratch()

    def decode(
        self, data: memoryview, out: memoryview, start: int, stop: int, *, has_base: bool
    ) -> None:
        """Write the bytes ``[start, stop)`` into ``out``."""
        source = self._source if has_base else None
        base = _bytes_of(source, start, stop, self._scratch)
        self._codec.decode(data, out, FramePlace(self._layout, start, stop), base)


def encoder_for(codec: FrameCodec, layout: Layout, bases: Mapping[str, Source]) -> EncoderFor:
    """Return what makes the encoder for a receiver.

    Args:
        codec: The codec.
        layout: Layout of the body that is sent.
        bases: Models that receivers may have, by the names that they give them.
    """

    def encoder(name: str) -> FrameEncoder:
        base = bases.get(name) if codec.needs_base else None
        fits = base is not None and base.layout == layout
        return BodyEncoder(codec, layout, base if fits else None)

    return encoder


def decoder_for(
    codec: FrameCodec | None, base: Source | None = None, name: str = ""
) -> Callable[[Layout], BodyDecoder] | None:
    """Return what makes the decoder for a body, once its layout is known; None without a codec.

    Args:
        codec: The codec.
        base: Model that the sender may have, too; None for none.
        name: Name of that model.
    """
    if codec is None:
        return None
    return lambda layout: BodyDecoder(codec, layout, base, name)


def _bytes_of(source: Source | None, start: int, stop: int, scratch: Scratch) -> memoryview | None:
    if source is None:
        return None
    return joined(views_of(source, start, stop, scratch))
