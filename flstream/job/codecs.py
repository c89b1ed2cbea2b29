"""Section of the job file that lists codecs of what travels between the server and the sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo

from flstream.job.annotations import ValueKind
from flstream.job.codec_sections import BUILT_IN, FEEDBACK, LOSSY, STEPS
from flstream.job.own_code import CodecTraits, check_codec
from flstream.job.problems import Problem, RefusedValueError, given
from flstream.job.rules import Patterns, Section, folder_of
from flstream.job.typed_sections import TypedSpec, parse_spec, render_specs


class CodecSpec(TypedSpec):
    """One codec of a resolved job."""


@dataclass(frozen=True)
class CodecPlan:
    """The codecs of one direction.

    Attributes:
        specs: The codecs, in the order in which a sender applies them.
        require_lossless: Regular expressions for names of tensors that lose no bits.
        of_models: Whether models are sent, and not updates.
    """

    specs: list[CodecSpec] = field(default_factory=list)
    require_lossless: list[str] = field(default_factory=list)
    of_models: bool = False

    @property
    def leaves_out(self) -> bool:
        """Whether the first of them leaves numbers out, which come with later updates."""
        return bool(self.specs) and self.specs[0].type in FEEDBACK

    @property
    def needs_base(self) -> bool:
        """Whether a model that is known to both sides is of use."""
        return any(each.type == "delta" for each in self.specs)

    @property
    def is_lossy(self) -> bool:
        """Whether the first of them loses bits."""
        return bool(self.specs) and _traits(self.specs[0]).kind == "lossy"


def _parsed(value: Any, info: ValidationInfo) -> CodecSpec:
    """Return a codec with all of its arguments; one of the user's own is imported."""
    spec = parse_spec(value, "codec", BUILT_IN, CodecSpec, folder_of(info))
    _traits(spec)
    return spec


def _traits(spec: CodecSpec) -> CodecTraits:
    """Return what a codec does; one of the user's own is made to be asked."""
    if spec.type not in BUILT_IN:
        return check_codec(spec.type, spec.args)
    if spec.type in LOSSY:
        return CodecTraits("lossy", spec.type in FEEDBACK)
    return CodecTraits("step" if spec.type in STEPS else "compressor")


def _in_order(specs: list[CodecSpec], direction: Literal["down", "up"]) -> list[CodecSpec]:
    """Refuse codecs that cannot follow each other, or not in this direction."""
    traits, problems = [*map(_traits, specs)], []
    for index, (spec, (kind, for_updates)) in enumerate(zip(specs, traits, strict=True)):
        key, name = f"[{index}]", given(spec.name)
        if any(spec.type == each.type for each in specs[:index]):
            problems.append(Problem(key, name, "a codec that is not in the list already"))
        elif kind == "lossy" and index:
            hint = "what loses bits comes before what is exact, and there is one at most"
            problems.append(Problem(key, name, "an exact codec", hint))
        elif kind == "compressor" and index < len(specs) - 1:
            problems.append(Problem(key, name, "the last of the list"))
        elif kind == "lossy" and direction == "down" and for_updates:
            hint = "it sends changes alone, and a site may have no model that they are changes of"
            problems.append(Problem(key, name, "a codec of whole models", hint))
        elif spec.type == "delta" and traits[0].kind == "lossy" and direction == "up":
            hint = f"{specs[0].name} encodes differences already"
            problems.append(Problem(key, name, "left out", hint))
    if not problems and specs and traits[-1].kind == "step":
        hint = "it makes no bytes fewer by itself"
        last = specs[-1].name
        problems.append(Problem(f"[{len(specs) - 1}]", given(last), "followed by zstd", hint))
    if problems:
        raise RefusedValueError(*problems)
    return specs


_Codecs = list[Annotated[CodecSpec, PlainValidator(_parsed)]]
CODECS = ValueKind(
    "a list of codecs, each a name or a section { type, and the codec's own keys }",
    "[zstd]",
    render=render_specs,
)


class CodecsSection(Section):
    """How models are made smaller for their way, in the order of the lists.

    A codec that loses bits may come first: `cast`, `int8` or `int4`, and of updates also `topk` and
    `ternary`, which send later what they left out. Of updates, the difference from the model is
    encoded. A model is rounded before it is kept, so that the server's file, what is evaluated and
    what sites receive are the same bits. `delta`, `shuffle` and `zstd` are exact, and work in pull
    mode; between sites that exchange updates with each other, and in short bodies, they are passed
    over.
    """

    down: Annotated[_Codecs, AfterValidator(partial(_in_order, direction="down")), CODECS] = Field(
        default_factory=list
    )
    """The codecs of models: cast, int8, int4, delta, shuffle, zstd or your own.

    Your own gives numbers that it has decoded back as they are.
    """

    up: Annotated[_Codecs, AfterValidator(partial(_in_order, direction="up")), CODECS] = Field(
        default_factory=list
    )
    """The codecs of updates: cast, int8, int4, topk, ternary, delta, shuffle, zstd or your own.

    One with arguments is a section, such as `{ type = topk, fraction = 0.05 }`. Your own is a
    class in a file beside the job file, `{ type = "mine.py:Codec" }` with its keyword arguments.
    """

    require_lossless: Patterns = Field(default_factory=list)
    """Regular expressions: tensors in whose names one is found lose no bits."""

    def by_key(self) -> Iterator[tuple[str, CodecSpec]]:
        """Yield all codecs, each with its key, such as `streaming.codecs.up[0]`."""
        for direction, specs in (("up", self.up), ("down", self.down)):
            for place, spec in enumerate(specs):
                yield f"streaming.codecs.{direction}[{place}]", spec

    @property
    def keep_models(self) -> bool:
        """Whether sites keep a model as they received it, since others are compared with it."""
        up, down = self.of_updates, self.of_models
        return up.is_lossy or up.needs_base or down.needs_base

    @property
    def of_models(self) -> CodecPlan:
        """The codecs of models."""
        return CodecPlan(self.down, self.require_lossless, of_models=True)

    @property
    def of_updates(self) -> CodecPlan:
        """The codecs of updates."""
        return CodecPlan(self.up, self.require_lossless)
