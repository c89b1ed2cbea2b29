"""Section of the job file for codecs between the server and the sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from flstream.job.code import find
from flstream.job.fields import Allowed, Patterns, Real, Section, Whole
from flstream.job.files import code_name
from flstream.job.problems import Problem, RefusedValueError, given_clause
from flstream.job.typed import TypedSection


class CodecTraits(NamedTuple):
    """Traits of a codec.

    Attributes:
        kind: What it does to bytes: it loses bits, changes them, or makes them fewer.
        for_updates: Whether it is for changes of a model alone, and what it leaves out of one is
            added to the next.
    """

    kind: Literal["lossy", "step", "compressor"]
    for_updates: bool = False


_LOSSY, _FEEDBACK = CodecTraits("lossy"), CodecTraits("lossy", for_updates=True)
_STEP, _COMPRESSOR = CodecTraits("step"), CodecTraits("compressor")


class CodecArgs(Section):
    """Arguments of a built-in codec."""

    traits: ClassVar[CodecTraits]


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("")  # the words of the type say all
    return number


Group = Annotated[
    Whole,
    Field(ge=2, le=65_536),
    AfterValidator(_power_of_two),
    Allowed("a power of two from 2 to 65536"),
]
"""How many numbers share a scale."""


class CastSection(CodecArgs):
    """Send numbers of 16 bits, each rounded once to the nearest."""

    traits = _LOSSY

    to: Literal["bf16", "f16"] = "bf16"
    """The type: bf16 has the range of float32, f16 is more exact and is refused above 65504."""


class Int8Section(CodecArgs):
    """Send whole numbers of 8 bits, and a scale for each group of them."""

    traits = _LOSSY

    group: Group = 256
    """How many numbers share a scale: the fewer, the smaller the errors and the more scales."""


class Int4Section(CodecArgs):
    """Send whole numbers of 4 bits, and a scale for each group of them."""

    traits = _LOSSY

    group: Group = 64
    """How many numbers share a scale: the fewer, the smaller the errors and the more scales."""


class TopKSection(CodecArgs):
    """Send the largest changes alone; what is left out is added to the site's next update.

    From Aji and Heafield 2017, arXiv:1704.05021, with the error feedback of Stich et al. 2018,
    arXiv:1809.07599.
    """

    traits = _FEEDBACK

    fraction: Annotated[Real, Field(gt=0, le=1)] = 0.01
    """The fraction of each 65536 numbers that is sent."""


class TernarySection(CodecArgs):
    """Send the signs of the largest changes and the mean of their magnitudes.

    From Sattler et al. 2019, arXiv:1903.02891; what is left out is added to the site's next update.
    """

    traits = _FEEDBACK

    fraction: Annotated[Real, Field(gt=0, le=1)] = 0.04
    """The fraction of each 65536 numbers that is sent."""


class DeltaSection(CodecArgs):
    """Send the exclusive or with the bytes of a model that the receiver has, for zstd after it."""

    traits = _STEP


class ShuffleSection(CodecArgs):
    """Send first bytes of all numbers, then all second ones, and so on, for zstd after it."""

    traits = _STEP


class ZstdSection(CodecArgs):
    """Compress every frame with Zstandard."""

    traits = _COMPRESSOR

    level: Annotated[Whole, Field(ge=1, le=19)] = 1
    """The level: above 1, it takes many times as long for weights that get hardly any smaller."""


BUILT_IN: Mapping[str, type[CodecArgs]] = {
    "cast": CastSection,
    "int8": Int8Section,
    "int4": Int4Section,
    "topk": TopKSection,
    "ternary": TernarySection,
    "delta": DeltaSection,
    "shuffle": ShuffleSection,
    "zstd": ZstdSection,
}
"""Sections of the arguments of built-in codecs, by the codec's name."""


class CodecSection(TypedSection):
    """A codec, with its arguments."""

    sections = BUILT_IN

    type: Annotated[str, *code_name("Class", BUILT_IN.keys)]
    """The codec: cast, int8, int4, topk, ternary, delta, shuffle, zstd, or a class of yours."""

    @property
    def traits(self) -> CodecTraits:
        """Traits of the codec; one of the user's own is made to ask it."""
        if self.type in BUILT_IN:
            return BUILT_IN[self.type].traits
        codec = find(self.type, "class")(**dict(self.args))
        for_updates = bool(getattr(codec, "for_updates", False))
        return CodecTraits("compressor" if hasattr(codec, "compress") else "lossy", for_updates)


@dataclass(frozen=True)
class CodecPlan:
    """The codecs of one direction.

    Attributes:
        specs: The codecs, in the order in which a sender applies them.
        require_lossless: Regular expressions for names of tensors that lose no bits.
        of_models: Whether models are sent, and not updates.
        of_changes: Whether models are sent as their changes from the models before them.
    """

    specs: list[CodecSection] = field(default_factory=list)
    require_lossless: list[str] = field(default_factory=list)
    of_models: bool = False
    of_changes: bool = False

    @property
    def leaves_out(self) -> bool:
        """Whether the first codec leaves numbers out, which come with later updates."""
        return bool(self.specs) and self.specs[0].traits.for_updates

    @property
    def needs_base(self) -> bool:
        """Whether a model that is known to both sides is of use."""
        return any(codec.type == "delta" for codec in self.specs)

    @property
    def is_lossy(self) -> bool:
        """Whether the first codec loses bits."""
        return bool(self.specs) and self.specs[0].traits.kind == "lossy"

    @property
    def is_framed(self) -> bool:
        """Whether a codec works on the frames of a download."""
        return any(codec.traits.kind != "lossy" for codec in self.specs)


def _in_order(specs: list[CodecSection], direction: Literal["down", "up"]) -> list[CodecSection]:
    """Refuse codecs that cannot follow each other, without asking own ones."""
    if all(spec.type in BUILT_IN for spec in specs) and (problems := [*disorder(specs, direction)]):
        raise RefusedValueError(*problems)
    return specs


def disorder(specs: Sequence[CodecSection], direction: Literal["down", "up"]) -> Iterator[Problem]:
    """Yield the problems of codecs in a wrong order or direction.

    Args:
        specs: The codecs; own ones are imported.
        direction: Direction of what they encode.

    Yields:
        Problems, with keys relative to the list.
    """
    traits = [spec.traits for spec in specs]
    for index, (spec, (kind, for_updates)) in enumerate(zip(specs, traits, strict=True)):
        key, name = f"[{index}]", given_clause(spec.name)
        if any(spec.type == codec.type for codec in specs[:index]):
            yield Problem(key, name, "a codec that is not in the list already")
        elif kind == "lossy" and index:
            hint = "what loses bits comes before what is exact, and there is one at most"
            yield Problem(key, name, "an exact codec", hint)
        elif kind == "compressor" and index < len(specs) - 1:
            yield Problem(key, name, "the last of the list")
        elif kind == "lossy" and direction == "down" and for_updates:
            hint = "it sends changes alone, and a site may have no model that they are changes of"
            yield Problem(key, name, "a codec of whole models", hint)
        elif spec.type == "delta" and traits[0].kind == "lossy" and direction == "up":
            hint = f"{specs[0].name} encodes differences already"
            yield Problem(key, name, "left out", hint)
        elif kind == "step" and index == len(specs) - 1:
            hint = "it makes no bytes fewer by itself"
            yield Problem(key, name, "followed by zstd", hint)


_Codecs = list[CodecSection]
_CODECS = Allowed("a list of codecs, each a name or a section { type, args }, such as [zstd]")


class CodecsSection(Section):
    """Codecs that make models smaller for their way, in the order of the lists.

    A codec that loses bits may come first: `cast`, `int8` or `int4`, and of updates also `topk` and
    `ternary`, which send later what they left out. Of updates, the difference from the model is
    encoded. A model is rounded before it is kept, so that the server's file, what is evaluated and
    what sites receive are the same bits. `delta`, `shuffle` and `zstd` are exact, and work in pull
    mode; between sites that exchange updates with each other, and in short bodies, they are passed
    over.
    """

    down: Annotated[_Codecs, AfterValidator(partial(_in_order, direction="down")), _CODECS] = Field(
        default_factory=list
    )
    """The codecs of models: cast, int8, int4, delta, shuffle, zstd or your own.

    Your own gives numbers that it has decoded back as they are.
    """

    down_of: Literal["models", "changes"] = "models"
    """What a codec that loses bits encodes on the way down.

    changes: a model's difference from the one that it was made of, which sites add to what they
    have. So small learning rates lose nothing, and 4 or 8 bits are enough. Sites that do not have
    that model, and those that score one, are sent all bits. A site's state has a model more.
    """

    up: Annotated[_Codecs, AfterValidator(partial(_in_order, direction="up")), _CODECS] = Field(
        default_factory=list
    )
    """The codecs of updates: cast, int8, int4, topk, ternary, delta, shuffle, zstd or your own.

    One with arguments is a section, such as `{ type = topk, args { fraction = 0.05 } }`. Your own
    is a class in a file beside the job file, `{ type = "mine.py:Codec" }`; args are its keywords.
    """

    require_lossless: Patterns = Field(default_factory=list)
    """Regular expressions: tensors in whose names one is found lose no bits."""

    @property
    def keep_models(self) -> bool:
        """Whether sites keep received models, for comparisons."""
        up, down = self.of_updates, self.of_models
        return up.is_lossy or up.needs_base or down.needs_base or down.of_changes

    @property
    def of_models(self) -> CodecPlan:
        """The codecs of models."""
        plan = CodecPlan(self.down, self.require_lossless, of_models=True)
        if self.down_of == "changes" and plan.is_lossy:
            return replace(plan, of_models=False, of_changes=True)
        return plan

    @property
    def of_updates(self) -> CodecPlan:
        """The codecs of updates."""
        return CodecPlan(self.up, self.require_lossless)
