"""Section of the job file that lists codecs of what travels between the server and the sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from flstream.job.codec_code import CodecTraits, check_codec
from flstream.job.codec_sections import BUILT_IN, FEEDBACK, LOSSY, STEPS
from flstream.job.free_values import FreeArgs
from flstream.job.problems import Problem, given
from flstream.job.rules import Patterns, ValueRule, refuse
from flstream.job.section import Section
from flstream.job.typed_sections import TypedSpec, arguments_of, parse_each, type_and_args
from flstream.job.values import render_value


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
        first = self.specs[0] if self.specs else None
        if first is None or ":" not in first.type:
            return first is not None and first.type in LOSSY
        return check_codec(first.type, first.args).kind == "lossy"


class _Listed(NamedTuple):
    """A codec of a list.

    Attributes:
        spec: The codec.
        traits: What it does.
    """

    spec: CodecSpec
    traits: CodecTraits


@dataclass(frozen=True)
class CodecList(ValueRule):
    """A list of codecs, in the order in which a sender applies them."""

    direction: Literal["down", "up"]
    """Whether models are sent (`down`) or updates (`up`)."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a list of codecs, each a name or a section { type, and the codec's own keys }"

    def parse(self, value: Any, folder: Path) -> list[CodecSpec]:
        """Return the codecs with all of their arguments; those of the user's own are imported."""
        if not isinstance(value, list):
            raise self.refused(value, "write [zstd]")
        listed = parse_each(value, lambda each: _parsed(each, folder))
        problems = [*_misplaced(listed, self.direction)]
        if problems:
            raise refuse(*problems)
        return [each.spec for each in listed]

    def render(self, value: Any) -> str:
        """Return HOCON text that parses to these codecs."""
        return render_value([each.as_section() for each in value])


class CodecsSection(Section):
    """How models are made smaller for their way, in the order of the lists.

    A codec that loses bits may come first: `cast`, `int8` or `int4`, and of updates also `topk` and
    `ternary`, which send later what they left out. Of updates, the difference from the model is
    encoded. A model is rounded before it is kept, so that the server's file, what is evaluated and
    what sites receive are the same bits. `delta`, `shuffle` and `zstd` are exact, and work in pull
    mode; between sites that exchange updates with each other, and in short bodies, they are passed
    over.
    """

    down: Annotated[list[CodecSpec], CodecList("down")] = Field(default_factory=list)
    """The codecs of models: cast, int8, int4, delta, shuffle, zstd or your own.

    Your own gives numbers that it has decoded back as they are.
    """

    up: Annotated[list[CodecSpec], CodecList("up")] = Field(default_factory=list)
    """The codecs of updates: cast, int8, int4, topk, ternary, delta, shuffle, zstd or your own.

    One with arguments is a section, such as `{ type = topk, fraction = 0.05 }`. Your own is a
    class in a file beside the job file, `{ type = "mine.py:Codec" }` with its keyword arguments.
    """

    require_lossless: Annotated[list[str], Patterns()] = Field(default_factory=list)
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


def _parsed(value: Any, folder: Path) -> _Listed:
    kind, args = type_and_args(value, "codec", tuple(BUILT_IN), folder)
    if kind in BUILT_IN:
        spec = CodecSpec(kind, arguments_of(BUILT_IN[kind], args, folder))
        if kind in LOSSY:
            return _Listed(spec, CodecTraits("lossy", kind in FEEDBACK))
        return _Listed(spec, CodecTraits("step" if kind in STEPS else "compressor"))
    spec = CodecSpec(kind, FreeArgs().parse(args, folder))
    return _Listed(spec, check_codec(spec.type, spec.args))


def _misplaced(listed: Sequence[_Listed], direction: str) -> list[Problem]:
    """Return what is wrong with the order of codecs."""
    problems = []
    for index, (spec, (kind, for_updates)) in enumerate(listed):
        key, name = f"[{index}]", given(spec.name)
        if any(spec.type == each.spec.type for each in listed[:index]):
            problems.append(Problem(key, name, "a codec that is not in the list already"))
        elif kind == "lossy" and index:
            hint = "what loses bits comes before what is exact, and there is one at most"
            problems.append(Problem(key, name, "an exact codec", hint))
        elif kind == "compressor" and index < len(listed) - 1:
            problems.append(Problem(key, name, "the last of the list"))
        elif kind == "lossy" and direction == "down" and for_updates:
            hint = "it sends changes alone, and a site may have no model that they are changes of"
            problems.append(Problem(key, name, "a codec of whole models", hint))
        elif spec.type == "delta" and listed[0].traits.kind == "lossy" and direction == "up":
            hint = f"{listed[0].spec.name} encodes differences already"
            problems.append(Problem(key, name, "left out", hint))
    if not problems and listed and listed[-1].traits.kind == "step":
        hint = "it makes no bytes fewer by itself"
        last = listed[-1].spec.name
        problems.append(Problem(f"[{len(listed) - 1}]", given(last), "followed by zstd", hint))
    return problems
