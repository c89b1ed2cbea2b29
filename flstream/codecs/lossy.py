"""A codec with a loss for whole models: layouts, and the sources on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flstream.codecs.block_codec import BlockCodec
from flstream.codecs.coded_layout import CodedLayout
from flstream.codecs.coded_sources import DecodedSource, EncodedSource
from flstream.codecs.read_ahead import BaseNumbers
from flstream.errors import CodecError
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import Source


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
        """Whether it is for differences from a model alone, with error feedback."""
        return bool(getattr(self.codec, "for_updates", False))

    def coded(self, layout: Layout) -> CodedLayout:
        """Return which tensors of a model are encoded, and where."""
        return CodedLayout.of(layout, self.codec, self.require_lossless)

    def encoded(self, layout: Layout) -> Layout:
        """Return the layout of a model's encoded form: no longer than the model."""
        return self.coded(layout).encoded

    def encode(self, source: Source, base: Source | None = None, *, blanks: bool = False) -> Source:
        """Return a model's encoded form: a source that is computed range by range.

        It has random access if the model has. Nothing is kept for the next one: see
        :func:`~flstream.codecs.error_feedback.encode_with_feedback`.

        Args:
            source: The model, or an update.
            base: Model with random access that the receiver has, too. What is encoded is then the
                difference from it; tensors that pass are still the source's own.
            blanks: Whether a block that cannot be encoded is zeros, for what is only compared.

        Raises:
            CodecError: The base lacks a tensor; the message names it.
        """
        coded = self.coded(source.layout)
        numbers = None if base is None else BaseNumbers(base, coded)
        return EncodedSource(source, coded, self.codec, self.name, numbers, blanks=blanks)

    def decode(
        self, encoded: Source, layout: Layout, frame: int = 16, base: Source | None = None
    ) -> Source:
        """Return the model that an encoded form stands for: a source, computed range by range.

        Args:
            encoded: The encoded form. If it has no random access, it is read once, from front to
                back, to its end if the model is.
            layout: Layout of the model.
            frame: Bytes of which the ends of reads of such a body must be multiples.
            base: Model with which it was encoded, if it was with one. Its numbers are added, and
                the sum is rounded once to the tensor's type.

        Raises:
            CodecError: The encoded form is not laid out as one of such a model; the message names
                the first tensor that differs.
        """
        coded = self.coded(layout)
        difference = coded.encoded.difference(encoded.layout)
        if difference:
            raise CodecError(
                f"what came is not the model as the codec {self.name} encodes it: {difference}"
            )
        numbers = None if base is None else BaseNumbers(base, coded)
        return DecodedSource(encoded, coded, self.codec, self.name, frame, numbers)

    def rounded(self, source: Source) -> Source:
        """Return a model as it is once it was encoded and decoded, in its own layout.

        It has the bits that a receiver decodes from ``encode(source)``, and it is encoded to the
        same bits as it was itself only where the codec says so.
        """
        return self.decode(self.encode(source), source.layout)


def part_layout_of(model: Layout, encoded: Layout) -> Layout:
    """Return the layout of the model's tensors that an encoded body has, which may be a part.

    What is encoded keeps its name. Other differences are found by :meth:`LossyCodec.decode`.

    Args:
        model: Layout of the whole model.
        encoded: Layout of an encoded update.
    """
    specs: list[TensorInfo] = []
    for spec in model.tensors:
        if spec.name in encoded.by_name:
            start = specs[-1].stop if specs else 0
            specs.append(spec._replace(start=start, stop=start + spec.nbytes))
    there = encoded.by_name
    aliases = {a: n for a, n in model.aliases.items() if a in encoded.aliases and n in there}
    return Layout(specs, aliases)
