"""Lists of sections with a type: built-ins with keys of their own, and classes of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from flstream.job.files import Factory
from flstream.job.key import join, keys_of, named, problems_of
from flstream.job.problems import MISSING, UNKNOWN, Problem, ask_for, did_you_mean, given
from flstream.job.rules import refuse
from flstream.job.section import Section
from flstream.job.values import render_value

ParsedT = TypeVar("ParsedT")


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


@dataclass(frozen=True)
class BuiltInOrClass(Factory):
    """Name of a built-in, or a class in a file or a module."""

    what: str = "Class"
    built_in: tuple[str, ...] = ()
    """Names of the built-ins."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"{', '.join(self.built_in)}, path/to/file.py:Class or module:Class"

    def parse(self, value: Any, folder: Path) -> str:
        """Return a built-in's name, or the class's absolute place; no code is imported."""
        if value in self.built_in:
            return str(value)
        if not isinstance(value, str) or ":" not in value:
            raise self.refused(value, did_you_mean(str(value).lower(), self.built_in))
        return super().parse(value, folder)


def parse_each(values: list[Any], parse: Callable[[Any], ParsedT]) -> list[ParsedT]:
    """Return the parsed elements of a list.

    Raises:
        PydanticCustomError: Some are refused; the problems of all have their places as keys.
    """
    found, problems = list[ParsedT](), list[Problem]()
    for index, each in enumerate(values):
        try:
            found.append(parse(each))
        except PydanticCustomError as error:
            problems += below(f"[{index}]", error)
    if problems:
        raise refuse(*problems)
    return found


def type_and_args(
    value: Any, what: str, built_in: tuple[str, ...], folder: Path
) -> tuple[str, dict[str, Any]]:
    """Return the type of a section and the arguments that it gives.

    Args:
        value: The section, or the name of its type alone.
        what: What it is, such as ``filter``, for messages.
        built_in: Names of the built-ins.
        folder: Folder of the job file.
    """
    section = {"type": value} if isinstance(value, str) else value
    if not isinstance(section, dict):
        raise refuse(Problem("", given(value), f"the name of a {what}, or a section with a type"))
    rule = BuiltInOrClass(built_in=built_in)
    if "type" not in section:
        raise refuse(Problem("type", MISSING, rule.allowed))
    args = {name: each for name, each in section.items() if name != "type"}
    try:
        return rule.parse(section["type"], folder), args
    except PydanticCustomError as error:
        raise refuse(*below("type", error)) from None


def arguments_of(section: type[Section], args: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return all arguments of a built-in, with its defaults."""
    try:
        return section.model_validate(args, context={"folder": folder}).model_dump()
    except ValidationError as error:
        keys = named(keys_of(section))
        problems = problems_of(error.errors(), keys)
        raise refuse(
            *(
                replace(each, hint=ask_for(get_close_matches(each.key, [*keys], n=1)))
                if each.given == UNKNOWN
                else each
                for each in problems
            )
        ) from None


def below(key: str, error: PydanticCustomError) -> list[Problem]:
    """Return the problems of an error, with their keys below one."""
    problems = (error.context or {})["problems"]
    return [replace(each, key=join(key, each.key)) for each in problems]
