"""Lists of sections with a type: built-ins with keys of their own, and classes of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ValidationError

from flstream.job.files import CodeName
from flstream.job.free_values import sound
from flstream.job.key import Key, keys_of, named
from flstream.job.mistakes import problems_of
from flstream.job.problems import (
    MISSING,
    UNKNOWN,
    Problem,
    RefusedValueError,
    ask_for,
    must_be,
)
from flstream.job.rules import Section
from flstream.job.values import render_value


@dataclass(frozen=True)
class TypedSpec:
    """One section of such a list in a resolved job.

    Attributes:
        type: Name of a built-in, or the absolute place of a class of the user's own.
        args: All of its arguments, by name.
    """

    type: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Path | None:
        """Path of the file with the user's own class; None for others."""
        where = self.type.rpartition(":")[0]
        return Path(where) if where.endswith(".py") else None

    @property
    def name(self) -> str:
        """Name for messages: `gaussian`, or `mine.py:Filter` without a folder."""
        where, colon, name = self.type.rpartition(":")
        return f"{Path(where).name}{colon}{name}"

    def __str__(self) -> str:
        """Return the name with the arguments: `gaussian (sigma = 0.01)`."""
        args = ", ".join(f"{name} = {render_value(value)}" for name, value in self.args.items())
        return f"{self.name} ({args})" if args else self.name

    def as_section(self) -> dict[str, Any]:
        """Return the section that stands for it in a job file."""
        return {"type": self.type, **self.args}


SpecT = TypeVar("SpecT", bound=TypedSpec)


def parse_spec(
    value: Any,
    what: str,
    built_in: Mapping[str, type[Section]],
    made: type[SpecT],
    folder: Path,
) -> SpecT:
    """Return a section with a type, and all of its arguments.

    Args:
        value: The section, or the name of its type alone.
        what: What it is, such as ``filter``, for messages.
        built_in: Sections of the built-ins' arguments, by type.
        made: Class of the result.
        folder: Folder of the job file.

    Raises:
        RefusedValueError: It is no such section.
    """
    section = {"type": value} if isinstance(value, str) else value
    if not isinstance(section, dict):
        raise must_be(f"the name of a {what}, or a section with a type")
    types = Annotated[str, CodeName("Class", lambda: tuple(built_in))]
    key = Key(("type",), types, required=True, default=None, meaning="")
    if "type" not in section:
        raise RefusedValueError(Problem("type", MISSING, key.allowed))
    args = {name: each for name, each in section.items() if name != "type"}
    try:
        kind = key.parse(section["type"], folder)
    except RefusedValueError as error:
        raise RefusedValueError(*error.below("type")) from None
    return made(kind, _arguments(built_in[kind], args, folder) if kind in built_in else sound(args))


def _arguments(section: type[Section], args: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return all arguments of a built-in, with its defaults."""
    try:
        return section.model_validate(args, context={"folder": folder}).model_dump()
    except ValidationError as error:
        keys = named(keys_of(section))
        problems = problems_of(error, keys, args)
        raise RefusedValueError(
            *(
                replace(each, hint=ask_for(get_close_matches(each.key, [*keys], n=1)))
                if each.given == UNKNOWN
                else each
                for each in problems
            )
        ) from None


def render_specs(specs: Sequence[TypedSpec]) -> str:
    """Return HOCON text that parses to these sections."""
    return render_value([each.as_section() for each in specs])
