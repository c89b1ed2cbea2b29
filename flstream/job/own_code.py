"""Import and check of the user's own code that a job file names, when the file is loaded."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flstream.job.code import import_once
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, given

CodecKind = Literal["lossy", "step", "compressor"]

_METHODS: Mapping[CodecKind, tuple[str, ...]] = {
    "lossy": ("nbytes", "encode", "decode"),
    "compressor": ("compress", "expand"),
}


class CodecTraits(NamedTuple):
    """What a codec does.

    Attributes:
        kind: What it does to bytes.
        for_updates: Whether it is for changes of a model alone.
    """

    kind: CodecKind
    for_updates: bool = False


def import_named(value: str, place: str, what: str) -> Any:
    """Import an object that a job file names, unless this process has it already.

    Args:
        value: Value as the job file gives it, for messages.
        place: Place of the object: `package.module:name` or `/abs/path.py:name`.
        what: What the object is to be, such as ``function``, for messages.

    Raises:
        RefusedValueError: Its module cannot be imported, or has no such name.
    """
    where, _, name = place.rpartition(":")
    try:
        module = import_once(where)
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        hint = _raised(error, where, f"{Path(last.filename).name} line {last.lineno}")
        if isinstance(error, ModuleNotFoundError):
            hint += "; install it where flstream is, or put it beside the file"
        allowed = "in Python that can be imported"
        raise RefusedValueError(Problem("", given(value), allowed, hint)) from error
    if not hasattr(module, name):
        allowed = f"the name of a {what} at the top level of {where}"
        hint = did_you_mean(name, vars(module))
        raise RefusedValueError(Problem("", given(value), allowed, hint))
    return getattr(module, name)


def check_filter(place: str, args: Mapping[str, Any]) -> None:
    """Make a filter of the user's own once, and check that it can be called.

    Raises:
        RefusedValueError: It cannot be made, or is not a filter.
    """
    made = _tried(place, args)
    try:
        inspect.signature(made).bind("values", "block")
    except (TypeError, ValueError) as error:
        allowed = "a class whose objects are functions of (values, block)"
        raise RefusedValueError(Problem("type", given(place), allowed)) from error


def check_codec(place: str, args: Mapping[str, Any]) -> CodecTraits:
    """Make a codec of the user's own once, and return what it does.

    Raises:
        RefusedValueError: It cannot be made, or is no codec.
    """
    made = _tried(place, args)
    kind = codec_kind_of(made)
    if kind is None:
        allowed = "a class with the methods nbytes, encode and decode, or compress and expand"
        raise RefusedValueError(Problem("type", given(place), allowed))
    return CodecTraits(kind, bool(getattr(made, "for_updates", False)))


def codec_kind_of(made: Any) -> CodecKind | None:
    """Return what kind of codec an object of the user's own class is, by its methods."""
    for kind, names in _METHODS.items():
        if all(callable(getattr(made, name, None)) for name in names):
            return kind
    return None


def _tried(place: str, args: Mapping[str, Any]) -> Any:
    try:
        return _made(place, args)
    except (Exception, SystemExit) as error:
        allowed = "a class that takes these arguments"
        hint = _raised(error, place.rpartition(":")[0], Path(place).name)
        raise RefusedValueError(Problem("type", given(place), allowed, hint)) from error


def _made(place: str, args: Mapping[str, Any]) -> Any:
    where, _, name = place.rpartition(":")
    return getattr(import_once(where), name)(**args)


def _raised(error: BaseException, where: str, elsewhere: str) -> str:
    """Describe an error, with the line of the user's file; or with another place, for none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == where]
    at = f"{Path(where).name} line {lines[-1]}" if lines else elsewhere
    return f"{at} raised {type(error).__name__}: {error}".rstrip(": ")
