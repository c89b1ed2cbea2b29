"""Section of the job file that lists filters of what travels to and from training code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError

from flstream.job.files import Factory
from flstream.job.filter_code import check_filter
from flstream.job.filter_sections import BUILT_IN, EXCLUDE_VARS
from flstream.job.free_values import FreeArgs
from flstream.job.key import join, keys_of, named, problems_of
from flstream.job.problems import MISSING, UNKNOWN, Problem, ask_for, did_you_mean, given
from flstream.job.rules import ValueRule, refuse
from flstream.job.section import Section
from flstream.job.values import render_value


@dataclass(frozen=True)
class FilterSpec:
    """One filter of a resolved job.

    Attributes:
        type: Name of a built-in filter, or the absolute place of a class of the user's own.
        args: All of its arguments, by name.
    """

    type: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def changes_numbers(self) -> bool:
        """Whether it changes numbers, and does not leave out tensors."""
        return self.type != EXCLUDE_VARS

    @property
    def place(self) -> Path | None:
        """Path of the file with the user's own class; None for other filters."""
        where = self.type.rpartition(":")[0]
        return Path(where) if where.endswith(".py") else None

    @property
    def name(self) -> str:
        """Name of the filter for messages: `gaussian`, or `mine.py:Filter` without a folder."""
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
class FilterKind(Factory):
    """Name of a built-in filter, or a class in a file or a module."""

    what: str = "Class"

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"{', '.join(BUILT_IN)}, path/to/file.py:Class or module:Class"

    def parse(self, value: Any, folder: Path) -> str:
        """Return a built-in's name, or the class's absolute place; no code is imported."""
        if value in list(BUILT_IN):
            return str(value)
        if not isinstance(value, str) or ":" not in value:
            raise self.refused(value, did_you_mean(str(value).lower(), BUILT_IN))
        return super().parse(value, folder)


@dataclass(frozen=True)
class FilterList(ValueRule):
    """A list of filters: names, or sections with a type and its arguments."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a list of filters, each a name or a section { type, and the filter's own keys }"

    def parse(self, value: Any, folder: Path) -> list[FilterSpec]:
        """Return the filters with all of their arguments; those of the user's own are imported."""
        if not isinstance(value, list):
            raise self.refused(value, "write [percentile_privacy]")
        found, problems = list[FilterSpec](), list[Problem]()
        for index, each in enumerate(value):
            try:
                found.append(_parsed(each, folder))
            except PydanticCustomError as error:
                problems += _below(f"[{index}]", error)
        if problems:
            raise refuse(*problems)
        return found

    def render(self, value: Any) -> str:
        """Return HOCON text that parses to these filters."""
        return render_value([each.as_section() for each in value])


class FiltersSection(Section):
    """What is done at the sites to the models that travel, in the order of the lists.

    `up` filters take a training's update before it leaves its site: its difference from the model
    that the site was sent, so that the server and the wire see what they leave of it. `down`
    filters take the numbers of each model before the site's code sees it, to train or to evaluate.
    Integers and bools stay as they are. docs/filters.md has what they cost.
    """

    up: Annotated[list[FilterSpec], FilterList()] = Field(default_factory=list)
    """The filters of updates: percentile_privacy, svt_privacy, exclude_vars, gaussian or your own.

    One with arguments is a section, such as `{ type = gaussian, sigma = 0.01 }`. Your own is a
    class in a file beside the job file, `{ type = "mine.py:Filter" }` with its keyword arguments.
    """

    down: Annotated[list[FilterSpec], FilterList()] = Field(default_factory=list)
    """The filters of the models that sites receive, of the same types."""

    @property
    def keep_models(self) -> bool:
        """Whether a model is kept as it was received, since filters need it after training."""
        return bool(self.down) or any(each.changes_numbers for each in self.up)

    def by_key(self) -> Iterator[tuple[str, FilterSpec]]:
        """Yield all filters, each with its key, such as `filters.up[0]`."""
        for direction, specs in (("up", self.up), ("down", self.down)):
            for place, spec in enumerate(specs):
                yield f"filters.{direction}[{place}]", spec


def _parsed(value: Any, folder: Path) -> FilterSpec:
    section = {"type": value} if isinstance(value, str) else value
    if not isinstance(section, dict):
        raise refuse(Problem("", given(value), "the name of a filter, or a section with a type"))
    if "type" not in section:
        raise refuse(Problem("type", MISSING, FilterKind().allowed))
    args = {name: each for name, each in section.items() if name != "type"}
    try:
        kind = FilterKind().parse(section["type"], folder)
    except PydanticCustomError as error:
        raise refuse(*_below("type", error)) from None
    if kind in BUILT_IN:
        return FilterSpec(kind, _arguments(BUILT_IN[kind], args, folder))
    spec = FilterSpec(kind, FreeArgs().parse(args, folder))
    check_filter(spec.type, spec.args)
    return spec


def _arguments(section: type[Section], args: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return all arguments of a built-in filter."""
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


def _below(key: str, error: PydanticCustomError) -> list[Problem]:
    """Return the problems of an error, with their keys below one."""
    problems = (error.context or {})["problems"]
    return [replace(each, key=join(key, each.key)) for each in problems]
