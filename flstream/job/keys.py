"""Keys of the job file, read off the models that define it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from flstream.job.fields import Section
from flstream.job.hocon import split_index
from flstream.job.typed import TypedSection

WORKFLOW = "workflow"
"""Section that may be a list of sections; then its keys are `workflow[0].type` and so on."""

_KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "array": "a list",
    "object": "a section",
}
# pydantic has the shorter names where texts are read as numbers.
_ENDS = {
    ("minimum", "ge"): "of at least",
    ("exclusiveMinimum", "gt"): "above",
    ("maximum", "le"): "at most",
    ("exclusiveMaximum", "lt"): "below",
}


@dataclass(frozen=True)
class Key:
    """One key of the job file."""

    name: str
    """Dotted name: `clients.count`, or `workflow[1].type` in a list of workflows."""
    field: FieldInfo
    """Its definition."""

    @property
    def annotation(self) -> Any:
        """Type of its values, with its constraints."""
        return self.field.rebuild_annotation()

    @property
    def allowed(self) -> str:
        """Description of allowed values, to follow "must be"."""
        return allowed(self.annotation)

    @property
    def required(self) -> bool:
        """Whether the key must be given."""
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """Value of an omitted key, as a job file gives it; None for a required key."""
        if self.required:
            return None
        value = self.field.get_default(call_default_factory=True)
        return TypeAdapter(self.annotation).dump_python(value, mode="json")

    @property
    def meaning(self) -> str:
        """Effect of the key, with its unit; the first line is a summary."""
        return self.field.description or ""


@cache
def job_keys() -> Mapping[str, Key]:
    """Return every key of a job with the default types by its dotted name, in order."""
    return keys_in({})


def keys_in(values: Mapping[str, Any]) -> dict[str, Key]:
    """Return every key of the job file by its dotted name, in the order of definition.

    Args:
        values: Values of the job file, whose types say which arguments there are.
    """
    from flstream.job.job import Job

    return {key.name: key for key in keys_of(Job, (), values)}


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of job files."""
    from flstream.job.job import Job

    schema: dict[str, Any] = _standard(Job.model_json_schema())
    return schema


def _standard(schema: Any) -> Any:
    """Return a JSON schema with the names that ranges have in the standard."""
    if isinstance(schema, list):
        return [_standard(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    names = {short: name for name, short in _ENDS}
    return {names.get(key, key): _standard(value) for key, value in schema.items()}


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a job file by their dotted keys; no code that it names is imported.

    Args:
        values: Values of the job file, or of a section of it.
        above: Dotted name of the section.
    """
    for name, value in values.items():
        key = f"{above}.{name}" if above else name
        if key == WORKFLOW and isinstance(value, list):
            for index, each in enumerate(value):
                yield from flat(each, f"{key}[{index}]")
        elif isinstance(value, Mapping) and key not in job_keys():
            yield from flat(value, key)
        else:
            yield key, value


def value_at(values: Any, key: str) -> Any:
    """Return the value of a dotted key in the values of a job file; None for none."""
    for part in key.split("."):
        name, index = split_index(part)
        values = values.get(name) if isinstance(values, Mapping) else None
        if index is not None and isinstance(values, list):
            values = values[index]
    return values


def keys_of(
    section: type[Section], above: tuple[str, ...] = (), values: Mapping[str, Any] | None = None
) -> Iterator[Key]:
    """Yield the keys of a section and of the sections in it, in the order of definition.

    Args:
        section: Class that defines the keys.
        above: Parts of the dotted name of the section.
        values: Values of the section as a job file gives them, which say the types in it.
    """
    values = values if isinstance(values, Mapping) else {}
    for name, field in section.model_fields.items():
        name = field.alias or name
        written, inner = values.get(name), section_at(section, name, values)
        if inner is None:
            yield Key(".".join((*above, name)), field)
        elif isinstance(written, list):
            for index, each in enumerate(written):
                part = f"{name}[{index}]" if len(written) > 1 else name
                yield from keys_of(inner, (*above, part), each)
        else:
            yield from keys_of(inner, (*above, name), written)


def section_at(section: type[Section], name: str, values: Any) -> type[Section] | None:
    """Return the class of the section at a key of a section; None for a key of another kind."""
    annotation = inside(section, name, values)
    if name == WORKFLOW:
        annotation = inside(annotation, 0, None)
    return annotation if is_section(annotation) else None


def is_section(annotation: Any) -> bool:
    """Whether a type is that of a section."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def inside(annotation: Any, part: int | str, values: Any) -> Any:
    """Return the type of what lies at a part of a location, inside a value; None for nothing.

    Args:
        annotation: Type of the value.
        part: Name of a key, or an index.
        values: The value as a job file gives it, which says the types of typed sections in it.
    """
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin, inner = get_origin(annotation), get_args(annotation)
    if is_section(annotation):
        fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
        if part == "args" and issubclass(annotation, TypedSection):
            written = {"type": values} if isinstance(values, str) else values or {}
            kind = value_at(written, "type") or fields["type"].default
            return annotation.known_section(str(kind))
        return fields[part].rebuild_annotation() if part in fields else None
    if origin in (Union, UnionType):
        return next(filter(None, (inside(each, part, values) for each in inner)), None)
    if origin in (list, tuple) and isinstance(part, int):
        return inner[0]
    is_entry = origin is dict and isinstance(values, Mapping) and part in values
    return inner[1] if is_entry else None


def allowed(annotation: Any) -> str:
    """Return the description of the values of a type, to follow "must be"."""
    if is_section(annotation):
        names = [field.alias or name for name, field in annotation.model_fields.items()]
        return f"a section {{ {', '.join(names)} }}"
    schema = TypeAdapter(annotation).json_schema()
    return words(schema, schema.get("$defs", {}))


def words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return a JSON schema in words."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "$ref" in schema:
        return words(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if options := schema.get("anyOf"):
        inner = (words(each, definitions) for each in options if each.get("type") != "null")
        return ", or ".join(dict.fromkeys(inner))
    if names := choices(schema):
        return f"{'one of ' if len(names) > 1 else ''}{', '.join(names)}"
    if "properties" in schema:
        return f"a section {{ {', '.join(schema['properties'])} }}"
    is_whole = schema.get("type") == "integer"
    ends = {
        word: str(schema[name]) if is_whole else f"{schema[name]:g}"
        for names, word in _ENDS.items()
        for name in names
        if name in schema
    }
    kind = _KINDS.get(str(schema.get("type")), "a value")
    if is_whole and [*ends] == ["of at least", "at most"]:
        return f"{kind} from {ends['of at least']} to {ends['at most']}"
    return f"{kind} {' and '.join(map(' '.join, ends.items()))}".rstrip()


def choices(schema: Mapping[str, Any]) -> list[str]:
    """Return the words that a JSON schema lists."""
    named = schema.get("enum", [schema["const"]] if "const" in schema else [])
    inner = [name for each in schema.get("anyOf", ()) for name in choices(each)]
    return [*map(str, named), *inner]


def parse_value(key: str, value: Any, folder: Path) -> Any:
    """Return the typed value of one key of a job with the default workflow.

    Args:
        key: Dotted name of the key.
        value: Value as HOCON gives it.
        folder: Folder of the job file, in which relative paths start.

    Raises:
        RefusedValueError: The value is not allowed.
    """
    from flstream.job.explain import explain
    from flstream.job.problems import RefusedValueError

    annotation = job_keys()[key].annotation
    try:
        return TypeAdapter(annotation).validate_python(value, context={"folder": folder})
    except ValidationError as error:
        raise RefusedValueError(*explain(error, annotation, value)) from None


def nearest_keys(unknown: str, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys or sections that an unknown key was most likely meant to be.

    In order: the same name in another section, a longer name that contains it anywhere
    (`chunk_size`), a near name in the same section, a near name anywhere.

    Args:
        unknown: Dotted name of the unknown key.
        keys: Dotted names of the job's keys.
    """
    section, _, name = unknown.rpartition(".")
    keys = [*keys]
    ends = (key.split(".")[:end] for key in keys for end in range(1, key.count(".") + 1))
    known = dict.fromkeys([*keys, *map(".".join, ends)])
    last = {key: key.rpartition(".")[2] for key in known}
    if same := tuple(key for key in known if last[key] == name):
        return same
    if longer := tuple(key for key in known if len(name) > 3 and name in last[key]):
        return longer
    siblings = {last[key]: key for key in known if key.rpartition(".")[0] == section}
    if near := get_close_matches(name, siblings, n=1, cutoff=0.6):
        return (siblings[near[0]],)
    near = get_close_matches(name, last.values(), n=1, cutoff=0.7)
    return tuple(key for key in known if last[key] in near)
