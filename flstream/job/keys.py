"""Keys of the job file, from its JSON schema, and the mistakes in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from flstream.job.hocon import split_index
from flstream.job.problems import (
    MISSING,
    UNKNOWN,
    Problem,
    RefusedValueError,
    did_you_mean,
    given_clause,
    hint_of_name,
    join,
)

Schema = Mapping[str, Any]
"""JSON schema of a value, without references."""

WORKFLOW = "workflow"
"""Section that may be a list of sections; then its keys are `workflow[0].type` and so on."""

_KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "array": "a list",
    "object": "a section of keys and plain values",
}
_ENDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
# pydantic has these where texts are read as numbers.
_STANDARD = dict(zip(("ge", "gt", "le", "lt"), _ENDS, strict=True))


class Key(NamedTuple):
    """One key of the job file.

    Attributes:
        name: Dotted name: `clients.count`, or `workflow[1].type` in a list of workflows.
        schema: JSON schema of its values.
        required: Whether it must be given.
    """

    name: str
    schema: Schema
    required: bool

    @property
    def allowed(self) -> str:
        """Description of allowed values, to follow "must be"."""
        return words(self.schema)

    @property
    def default(self) -> Any:
        """Value of an omitted key, as a job file gives it; None for a required key."""
        return self.schema.get("default")

    @property
    def meaning(self) -> str:
        """Effect of the key, with its unit; the first line is a summary."""
        return str(self.schema.get("description", ""))


@cache
def schema_of(annotation: Any) -> Schema:
    """Return the JSON schema of a type, without references; not to be changed."""
    schema = TypeAdapter(annotation).json_schema()
    whole: Schema = _inlined(schema, schema.get("$defs", {}))
    return whole


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(inner, definitions) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {**definitions.get(str(schema.get("$ref")).removeprefix("#/$defs/"), {}), **schema}
    return {
        _STANDARD.get(name, name): _inlined(inner, definitions)
        for name, inner in schema.items()
        if name not in ("$ref", "$defs")
    }


@cache
def job_schema() -> Schema:
    """Return the JSON schema of job files."""
    from flstream.job.job import Job

    return schema_of(Job)


@cache
def job_keys() -> Mapping[str, Key]:
    """Return every key of a job with the default types by its dotted name, in order."""
    return keys_in({})


def keys_in(values: Mapping[str, Any]) -> dict[str, Key]:
    """Return every key of the job file by its dotted name, in the order of definition.

    Args:
        values: Values of the job file, whose types say which arguments there are.
    """
    return {key.name: key for key in keys_of(job_schema(), values)}


def keys_of(schema: Schema, values: Any = None, above: str = "") -> Iterator[Key]:
    """Yield the keys of a section and of the sections in it, by their types."""
    # Sections of any name, such as those of devices.
    named = schema.get("additionalProperties")
    if isinstance(named, Mapping) and "properties" in named and isinstance(values, Mapping):
        others = {name: named for name in values if name not in schema["properties"]}
        schema = {**schema, "properties": {**schema["properties"], **others}}
    for name, field in schema["properties"].items():
        key, written = join(above, name), value_at(values, name)
        sections = written if key == WORKFLOW and isinstance(written, list) else [written]
        for index, section in enumerate(sections):
            inner = section_at(schema, name, values)
            part = f"{key}[{index}]" if len(sections) > 1 else key
            if inner is None:
                yield Key(part, field, name in schema.get("required", ()))
            else:
                yield from keys_of(inner, section, part)


def section_at(schema: Schema, name: str, values: Any = None) -> Schema | None:
    """Return the schema of a section by its key; None for another key.

    The values of the section, as a job file gives them, say the types of arguments in it.
    """
    inner: Schema = schema["properties"][name]
    if name == "args":
        for case in schema.get("allOf", ()):
            [(key, named)] = case["if"]["properties"].items()
            kind = values if isinstance(values, str) else value_at(values, key)
            default = schema["properties"][key].get("default")
            if named["const"] == (default if kind is None else kind):
                inner = case["then"]["properties"]["args"]
    inner = inner["items"] if name == WORKFLOW else inner
    return inner if "properties" in inner else None


def leaves(values: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a job file by dotted key, each argument by itself."""
    if above == WORKFLOW and isinstance(values, list):
        for index, section in enumerate(values):
            yield from leaves(section, f"{above}[{index}]")
    elif isinstance(values, Mapping) and (values or not above):
        for name, value in values.items():
            yield from leaves(value, join(above, str(name)))
    else:
        yield above, values


def value_at(values: Any, key: str) -> Any:
    """Return the value of a dotted key in the values of a job file; None for none."""
    for part in key.split("."):
        name, index = split_index(part)
        values = values.get(name) if isinstance(values, Mapping) else None
        if index is not None and isinstance(values, list):
            values = values[index]
    return values


def words(schema: Schema) -> str:
    """Return the description of the values of a JSON schema, to follow "must be"."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        inner = (words(option) for option in options if option.get("type") != "null")
        return ", or ".join(dict.fromkeys(inner))
    if names := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return f"{'one of ' if len(names) > 1 else ''}{', '.join(map(str, names))}"
    if properties := schema.get("properties"):
        fixed = {
            name: f" = {inner['const']}" for name, inner in properties.items() if "const" in inner
        }
        return f"a section {{ {', '.join(name + fixed.get(name, '') for name in properties)} }}"
    is_whole = schema.get("type") == "integer"
    ends = {
        word: str(schema[name]) if is_whole else f"{schema[name]:g}"
        for name, word in _ENDS.items()
        if name in schema
    }
    kind = _KINDS.get(str(schema.get("type")), "a value")
    if is_whole and [*ends] == ["of at least", "at most"]:
        return f"{kind} from {ends['of at least']} to {ends['at most']}"
    return f"{kind} {' and '.join(map(' '.join, ends.items()))}".rstrip()


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest ends of dotted keys that tell them apart: ``lr`` of ``train.args.lr``."""
    keys, short = list(keys), {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        others = [other for other in keys if other != key]
        short[key] = next(
            (end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)),
            key,
        )
    return short


def nearest_keys(unknown: str, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys or sections that a user most likely meant by an unknown key.

    In order: the same name in another section, a longer name that contains it anywhere
    (`chunk_size`), a near name in the same section, a near name anywhere.
    """
    section, _, name = unknown.rpartition(".")
    keys = [*keys]
    ends = (key.split(".")[:end] for key in keys for end in range(1, key.count(".") + 1))
    last = {key: key.rpartition(".")[2] for key in [*keys, *map(".".join, ends)]}
    if same := tuple(key for key in last if last[key] == name):
        return same
    if longer := tuple(key for key in last if len(name) > 3 and name in last[key]):
        return longer
    siblings = {last[key]: key for key in last if key.rpartition(".")[0] == section}
    if near := get_close_matches(name, siblings, n=1, cutoff=0.6):
        return (siblings[near[0]],)
    near = get_close_matches(name, last.values(), n=1, cutoff=0.7)
    return tuple(key for key in last if last[key] in near)


def which_key(unknown: str, keys: Iterable[str]) -> str:
    """Return a question about the nearest keys to an unknown one; empty for none."""
    near = " or ".join(nearest_keys(unknown, keys))
    return f"did you mean {near}?" if near else ""


class _Mistake(NamedTuple):
    """Error of a key, with the file's value and the schema of its values."""

    error: ErrorDetails
    value: Any
    schema: Schema


def explain(error: ValidationError, section: Any, values: Any) -> list[Problem]:
    """Return pydantic's errors as problems, in one line for each key that has any.

    Args:
        error: Errors of a section. Those of sections in it are refusals, explained already.
        section: Its type.
        values: It, as the job file gives it.
    """
    schema, by_key = schema_of(section), dict[str, list[_Mistake]]()
    for detail in error.errors(include_url=False):
        key, mistake = _located(detail, schema, values)
        by_key.setdefault(key, []).append(mistake)
    own = schema.get("properties", {})
    return [problem for key in by_key for problem in _problems(key, by_key[key], own)]


def _refusal(error: ErrorDetails) -> RefusedValueError | None:
    cause = error.get("ctx", {}).get("error")
    return cause if isinstance(cause, RefusedValueError) else None


def _located(error: ErrorDetails, schema: Schema, value: Any) -> tuple[str, _Mistake]:
    """Return the key of an error within its section, without the tried types."""
    key, is_refusal = "", _refusal(error) is not None
    for depth, part in enumerate(error["loc"]):
        if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            # A wrong item of a list is named by the key of the list.
            is_apart = is_refusal and (key != WORKFLOW or len(value) > 1)
            key, value = join(key, f"[{part}]" if is_apart else ""), value[part]
        elif depth == 0 or (isinstance(value, Mapping) and part in value):
            inner = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
            schema = inner if isinstance(inner, Mapping) else schema
            value = value.get(part) if isinstance(value, Mapping) else error["input"]
            key = join(key, str(part))
    return key, _Mistake(error, value, schema)


def _problems(key: str, mistakes: Sequence[_Mistake], own: Schema) -> Iterator[Problem]:
    """Yield the problems of a key, one for each type of a union."""
    error, value, schema = mistakes[0]
    if refusals := [*filter(None, (_refusal(mistake.error) for mistake in mistakes))]:
        for problem in refusals[0].problems:
            inner = value_at(value, problem.key) if problem.key else value
            text = problem.state or given_clause(inner)
            yield Problem(join(key, problem.key), text, problem.allowed, problem.hint)
    elif error["type"] == "extra_forbidden":
        hint = f"there are {', '.join(own)}" if own else "leave it out"
        yield Problem(key, UNKNOWN, "", which_key(key, own) or hint)
    elif error["type"] == "missing":
        yield Problem(key, MISSING, words(schema))
    else:
        hints = dict.fromkeys(_hint(mistake.error, value) for mistake in mistakes)
        yield Problem(key, given_clause(value), words(schema), "; ".join(filter(None, hints)))


def _hint(error: ErrorDetails, written: Any) -> str:
    match error["type"]:
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            names = re.findall("'([^']*)'", error["ctx"]["expected"])
            return did_you_mean(str(written).lower(), names) if len(names) > 1 else ""
        case "string_pattern_mismatch":
            return hint_of_name(written)
    return ""
