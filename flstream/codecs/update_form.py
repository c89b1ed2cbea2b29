"""The form in which updates of a model travel: as they are, or as a codec has encoded them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from flstream.codecs.chain import CodecChain
from flstream.codecs.coded_frames import decoder_for
from flstream.codecs.lossy import LossyCodec, part_layout_of
from flstream.errors import CodecError, UpdateRefusedError
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.streaming.coding import DecoderFor

T = TypeVar("T")
_PLAIN = CodecChain()


@dataclass(frozen=True)
class UpdateForm:
    """The form of the updates that were trained from a model.

    Attributes:
        model: The model, with random access.
        codecs: What encodes them.
        name: Name of the model, by which sites know it.
    """

    model: Source
    codecs: CodecChain = _PLAIN
    name: str = ""

    @property
    def codec(self) -> LossyCodec | None:
        """What encodes them with a loss; None for nothing."""
        return self.codecs.lossy

    @property
    def decoder_for(self) -> DecoderFor | None:
        """What gives frames of updates back; None where they come as they are."""
        return decoder_for(self.codecs.frames, self.model, self.name)

    def difference(self, sent: Layout, *, partial: bool) -> str | None:
        """Return how the layout of what was sent differs from that of an update, or None.

        Args:
            sent: Layout of what was sent.
            partial: Whether it may lack tensors of the model. Those that it has and that are not
                encoded are then looked at when it is folded.
        """
        layout = self.model.layout
        if partial:
            unknown = [name for name in sent.by_name if name not in layout.by_name]
            if unknown:
                return f"tensor {unknown[0]!r} is not part of the model"
            if sent.nbytes > layout.nbytes:
                return "its tensors are larger"
            if self.codec is None:
                return None
            layout = part_layout_of(layout, sent)
        if self.codec is not None:
            layout = self.codec.encoded(layout)
        return layout.difference(sent)

    def decoded(
        self, site: str, sent: Source, params_type: Literal["FULL", "DIFF"], frame: int
    ) -> Source:
        """Return an update whose bytes are as they were sent.

        Args:
            site: Name of the site that has sent it.
            sent: What it has sent.
            params_type: Whether it has weights, or differences from the model.
            frame: Bytes of which the ends of reads must be multiples, if it is read once.

        Raises:
            UpdateRefusedError: It is none of the codec's.
        """
        if self.codec is None:
            return sent
        codec = self.codec
        base = self.model if params_type == "FULL" else None
        layout = part_layout_of(self.model.layout, sent.layout)
        return _SiteUpdate(
            site, _of_site(site, lambda: codec.decode(sent, layout, frame or 16, base))
        )


class _SiteUpdate:
    """A decoded update, whose errors name the site."""

    def __init__(self, site: str, decoded: Source) -> None:
        self.layout = decoded.layout
        self._site = site
        self._decoded = decoded

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``."""
        _of_site(self._site, lambda: self._decoded.read(start, stop, into))


def _of_site(site: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except CodecError as error:
        raise UpdateRefusedError(site, f"cannot be decoded: {error}") from error
