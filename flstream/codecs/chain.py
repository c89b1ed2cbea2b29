"""The codecs of one direction, as a job file lists them, and the form of updates with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flstream.errors import UpdateRefusedError
from flstream.job.code import make
from flstream.job.codecs import CodecPlan
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.streaming.coding import Coder

if TYPE_CHECKING:
    from flstream.codecs.frames import FrameCodec
    from flstream.codecs.lossy import LossyCodec

BLOCK_CODECS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "cast": ("cast:Cast", ()),
    "int8": ("quantised:Quantised", (8,)),
    "int4": ("quantised:Quantised", (4,)),
    "topk": ("sparse:TopK", ()),
    "ternary": ("sparse:Ternary", ()),
}
"""Built-in codecs with a loss, by name: the class of each, and its first arguments."""

STEPS = ("delta", "shuffle")
"""Built-in steps of frames, by name."""

COMPRESSORS: Mapping[str, str] = {"zstd": "frames:Zstd"}
"""Built-in compressors of frames, by name."""


class CodecChain(NamedTuple):
    """Codecs of one direction.

    Attributes:
        lossy: Codec that encodes a body as another body, first; None for none.
        frames: Codec of the encoded body's frames; None for none.
        changes: Codec that encodes a model's changes from the one before it; None for none.
    """

    lossy: LossyCodec | None = None
    frames: FrameCodec | None = None
    changes: LossyCodec | None = None


_NO_CODECS = CodecChain()


def chain_of(plan: CodecPlan) -> CodecChain:
    """Make the codecs of one direction.

    Args:
        plan: The codecs, in an order that a job file accepts.

    Raises:
        Exception: Whatever the code of a user's own class raises.
    """
    if not plan.specs:
        return _NO_CODECS
    from flstream.codecs.frames import FrameCodec
    from flstream.codecs.lossy import LossyCodec

    lossy: LossyCodec | None = None
    steps: list[str] = []
    frames: FrameCodec | None = None
    for spec in plan.specs:
        args = dict(spec.args)
        own: Any = make(spec.type, args) if ":" in spec.type else None
        if spec.type in STEPS:
            steps.append(spec.type)
        elif spec.type in COMPRESSORS or hasattr(own, "compress"):
            compressor = own or _built_in(COMPRESSORS[spec.type])(**args)
            frames = FrameCodec(tuple(steps), compressor, spec.name)
        else:
            if own is None:
                place, first = BLOCK_CODECS[spec.type]
                codec = _built_in(place)(*first, **args)
                if plan.of_models and hasattr(codec, "of_models"):
                    codec = replace(codec, of_models=True)
            else:
                codec = own
            lossy = LossyCodec(codec, spec.name, tuple(plan.require_lossless), own is not None)
    if plan.of_changes:
        return CodecChain(None, frames, changes=lossy)
    return CodecChain(lossy, frames)


def _built_in(place: str) -> Any:
    return resolve_name(f"flstream.codecs.{place}")


@dataclass(frozen=True)
class UpdateForm:
    """Form of the updates that sites trained from a model.

    Attributes:
        model: The model, with random access.
        codecs: Codecs of the updates.
        name: Name of the model, by which sites know it.
    """

    model: Source
    codecs: CodecChain = _NO_CODECS
    name: str = ""

    @property
    def codec(self) -> LossyCodec | None:
        """The codec with a loss; None for none."""
        return self.codecs.lossy

    def decoder(self, layout: Layout) -> Coder | None:
        """Return the decoder of the frames of a layout; None where frames come as they are."""
        if self.codecs.frames is None:
            return None
        from flstream.codecs.frames import FrameCoder

        return FrameCoder(self.codecs.frames, layout, self.model, self.name)

    def expect_fit(self, site: str, sent: Layout, *, partial: bool) -> None:
        """Refuse an update that is not of the model, before any of its bytes are fetched.

        Args:
            site: Name of the site that sends it.
            sent: Its layout.
            partial: Whether it may lack tensors of the model.

        Raises:
            UpdateRefusedError: It has other tensors than the model.
        """
        layout = self.model.layout
        if partial:
            layout = layout.subset(sent.by_name, sent.aliases)
        if self.codec is not None:
            layout = self.codec.encoded(layout)
        if difference := layout.difference(sent):
            raise UpdateRefusedError(site, f"does not fit the model: {difference}")

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
