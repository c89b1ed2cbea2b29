"""Check of the codecs of the user's own that a job file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from flstream.job.own_class import try_own
from flstream.job.problems import Problem, given
from flstream.job.rules import refuse

CodecKind = Literal["lossy", "step", "compressor"]

_METHODS: Mapping[CodecKind, tuple[str, ...]] = {
    "lossy": ("nbytes", "encode", "decode"),
    "compressor": ("compress", "expand"),
}


def kind_of(made: Any) -> CodecKind | None:
    """Return what kind of codec an object of the user's own class is, by its methods."""
    for kind, names in _METHODS.items():
        if all(callable(getattr(made, name, None)) for name in names):
            return kind
    return None


class CodecTraits(NamedTuple):
    """What a codec does.

    Attributes:
        kind: What it does to bytes.
        for_updates: Whether it is for changes of a model alone.
    """

    kind: CodecKind
    for_updates: bool = False


def check_codec(place: str, args: Mapping[str, Any]) -> CodecTraits:
    """Make a codec of the user's own once, and return what it does.

    Raises:
        PydanticCustomError: It cannot be made, or is no codec.
    """
    made = try_own(place, args)
    kind = kind_of(made)
    if kind is None:
        allowed = "a class with the methods nbytes, encode and decode, or compress and expand"
        raise refuse(Problem("type", given(place), allowed))
    return CodecTraits(kind, bool(getattr(made, "for_updates", False)))
