"""Record of one key of the job file, derived from the section that defines it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from flstream.job.annotations import ValueKind, described, kind_of, render_plain
from flstream.job.mistakes import problems_of
from flstream.job.problems import RefusedValueError
from flstream.job.rules import Section

if TYPE_CHECKING:
    from flstream.job.job import Job

WORKFLOW = "workflow"
"""Section that may be a list of sections; then its keys are `workflow[0].type` and so on."""

_ABSENT = object()


@dataclass(frozen=True)
class Key:
    """One key of the job file, with its definition."""

    path: tuple[str, ...]
    """Parts of the dotted name: `("clients", "count")`, or `("workflow[1]", "type")` in a list."""
    annotation: Any
    """Type of its values, with its constraints."""
    required: bool
    """Whether the key must be given."""
    default: Any
    """Value of an omitted key; None for a required key."""
    meaning: str
    """Effect of the key, with its unit; the first line is a summary."""

    @property
    def name(self) -> str:
        """Dotted name of the key: `clients.count`."""
        return ".".join(self.path)

    @cached_property
    def kind(self) -> ValueKind | None:
        """Kind of its values; None for one that its type says all of."""
        return kind_of(self.annotation)

    @property
    def allowed(self) -> str:
        """Description of allowed values, to follow "must be"."""
        return described(self.annotation)

    def parse(self, value: Any, folder: Path) -> Any:
        """Return the typed value.

        Args:
            value: Value as HOCON gives it.
            folder: Folder of the job file, in which relative paths start.

        Raises:
            RefusedValueError: The value is not allowed.
        """
        try:
            return TypeAdapter(self.annotation).validate_python(value, context={"folder": folder})
        except ValidationError as error:
            raise RefusedValueError(*problems_of(error, {"": self}, value)) from None

    def value_in(self, job: Job) -> Any:
        """Return the value that a job has for this key."""
        section, index = split_index(self.path[0])
        value: Any = job.stages[index or 0] if section == WORKFLOW else getattr(job, section)
        for name in self.path[1:]:
            value = getattr(value, name)
        return value

    def is_in(self, values: Mapping[str, Any]) -> bool:
        """Whether a job file gives this key.

        Args:
            values: Values of the job file, as written.
        """
        return self.find(values, _ABSENT) is not _ABSENT

    def find(self, values: Mapping[str, Any], default: Any = None) -> Any:
        """Return the value that a job file gives for this key.

        Args:
            values: Values of the job file, as written.
            default: Value to return if it does not give the key.
        """
        inner: Any = values
        for part in self.path:
            name, index = split_index(part)
            inner = inner.get(name, _ABSENT) if isinstance(inner, Mapping) else _ABSENT
            if index is not None:
                is_there = isinstance(inner, list) and index < len(inner)
                inner = inner[index] if is_there else _ABSENT
        return default if inner is _ABSENT else inner

    def render(self, value: Any) -> str:
        """Return a value of this key as HOCON text."""
        if value is None:
            return "null"
        return render_plain(value) if self.kind is None else self.kind.render(value)


def split_index(part: str) -> tuple[str, int | None]:
    """Split a part of a key into name and index: `workflow[1]` into `("workflow", 1)`."""
    name, _, index = part.partition("[")
    return name, int(index.removesuffix("]")) if index else None


def keys_of(section: type[Section], above: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield the keys of a section and of the sections in it, in the order of definition.

    Args:
        section: Class that defines the keys.
        above: Path of the section itself.
    """
    for name, field in section.model_fields.items():
        yield from keys_at(field, (*above, name))


def keys_at(field: FieldInfo, path: tuple[str, ...]) -> Iterator[Key]:
    """Yield the key of a section's field, or all keys if the field is a section itself."""
    section = section_at(field)
    yield from [_key(field, path)] if section is None else keys_of(section, path)


def section_at(field: FieldInfo) -> type[Section] | None:
    """Return the class of a field that is a section; None if the field is a key."""
    inner = field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _key(field: FieldInfo, path: tuple[str, ...]) -> Key:
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    annotation = field.rebuild_annotation()
    return Key(path, annotation, field.is_required(), default, field.description or "")


def named(keys: Iterator[Key]) -> dict[str, Key]:
    """Return keys by their dotted names."""
    return {key.name: key for key in keys}


def workflow_name(index: int, count: int) -> str:
    """Return the name of a workflow's section, with which its keys begin.

    Args:
        index: Position of the workflow, from 0.
        count: Number of workflows of the job.
    """
    return f"{WORKFLOW}[{index}]" if count > 1 else WORKFLOW
