"""Record of one key of the job file, derived from the section that defines it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from flstream.job.free_values import PlainType
from flstream.job.problems import MISSING, UNKNOWN, Problem, given
from flstream.job.rules import ValueRule
from flstream.job.section import Section

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
    rule: ValueRule
    """Rule for its values; `rule.allowed` describes them in words."""
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
        return "null" if value is None else self.rule.render(value)


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
    # A key without a rule accepts the values of its type.
    rules = [each for each in field.metadata if isinstance(each, ValueRule)]
    rule = rules[0] if rules else PlainType(field.rebuild_annotation())
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    return Key(path, rule, field.is_required(), default, field.description or "")


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


def problems_of(details: Iterable[ErrorDetails], keys: Mapping[str, Key]) -> list[Problem]:
    """Return pydantic's errors as problems in the terms of the job file.

    Args:
        details: Errors of a section.
        keys: Keys of the section, by their names in it.
    """
    return [problem for detail in details for problem in _problems(detail, keys)]


def _problems(error: ErrorDetails, keys: Mapping[str, Key]) -> list[Problem]:
    key = ""
    for part in error["loc"]:
        key = join(key, f"[{part}]" if isinstance(part, int) else part)
    if error["type"] == "refused":
        return [
            # A problem with a full path (`model.factory`) keeps it.
            Problem(each.key if each.key in keys else join(key, each.key),
                    each.given, each.allowed, each.hint)
            for each in error["ctx"]["problems"]
        ]  # fmt: skip
    if error["type"] == "missing":
        return [Problem(key, MISSING, keys[key].rule.allowed if key in keys else "")]
    if error["type"] == "extra_forbidden":
        return [Problem(key, UNKNOWN)]
    inside = [name.removeprefix(f"{key}.") for name in keys if name.startswith(f"{key}.")]
    if not key:
        inside = list(keys)
    if inside:
        return [Problem(key, given(error["input"]), f"a section {{ {', '.join(inside)} }}")]
    allowed = keys[key].rule.allowed if key in keys else ""
    return [Problem(key, given(error["input"]), allowed, error["msg"])]


def join(key: str, inner: str) -> str:
    """Join a key with the name of a key inside it, or with an index (`[1]`)."""
    if not key or not inner:
        return key or inner
    return f"{key}{inner}" if inner.startswith("[") else f"{key}.{inner}"
