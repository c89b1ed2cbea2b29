"""Form in which a model's updates travel: as they are, or encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flstream.codecs.chain import CodecChain
from flstream.codecs.frames import decoder_for
from flstream.codecs.lossy import LossyCodec
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.streaming.coding import DecoderFor

_PLAIN = CodecChain()


@dataclass(frozen=True)
class UpdateForm:
    """Form of the updates that sites trained from a model.

    Attributes:
        model: The model, with random access.
        codecs: Codecs of the updates.
        name: Name of the model, by which sites know it.
    """

    model: Source
    codecs: CodecChain = _PLAIN
    name: str = ""

    @property
    def codec(self) -> LossyCodec | None:
        """The codec with a loss; None for none."""
        return self.codecs.lossy

    @property
    def decoder_for(self) -> DecoderFor | None:
        """The maker of decoders of frames; None where frames come as they are."""
        return decoder_for(self.codecs.frames, self.model, self.name)

    def difference(self, sent: Layout, *, partial: bool) -> str | None:
        """Describe how a layout that a site sent differs from an update's, if it does.

        Args:
            sent: Layout of what was sent.
            partial: Whether it may lack tensors of the model.
        """
        layout = self.model.layout
        if partial:
            layout = layout.subset(sent.by_name, sent.aliases)
        if self.codec is not None:
            layout = self.codec.encoded(layout)
        return layout.difference(sent)

    def decoded(self, sent: Source, params_type: Literal["FULL", "DIFF"]) -> Source:
        """Return an update whose bytes are as the site sent them.

        Args:
            sent: Body that a site has sent.
            params_type: Whether it has weights, or differences from the model.

        Raises:
            CodecError: It is none of the codec's.
        """
        if self.codec is None:
            return sent
        base = self.model if params_type == "FULL" else None
        layout = self.model.layout.subset(sent.layout.by_name, sent.layout.aliases)
        return self.codec.decode(sent, layout, base=base)
