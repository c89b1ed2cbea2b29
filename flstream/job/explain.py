"""pydantic's errors as mistakes in a job file: key, value given, values allowed, nearest key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flstream.job.keys import (
    WORKFLOW,
    Key,
    Schema,
    inside,
    keys_in,
    nearest_keys,
    schema_of,
    value_at,
    words,
)
from flstream.job.problems import (
    MISSING,
    UNKNOWN,
    Problem,
    RefusedValueError,
    did_you_mean,
    given,
    hint_of_name,
    join,
)

_ABSENT = object()


class _Place(NamedTuple):
    """Key that an error is of, with the schema of its values and of the section around it.

    An unknown key has no schema. The value is as the file gives it, or else the default.
    """

    key: str
    schema: Schema | None
    around: Schema
    written: Any


def explain(error: ValidationError, model: Any, values: Any) -> list[Problem]:
    """Return pydantic's errors as problems, in one line for each key that has any.

    Args:
        error: Errors of a job, a section or a value.
        model: Its type.
        values: It, as the job file gives it.
    """
    from flstream.job.job import Job

    schema, by_key = schema_of(model), dict[str, tuple[_Place, list[ErrorDetails]]]()
    for detail in error.errors(include_url=False):
        place = _located(detail, schema, values)
        by_key.setdefault(place.key, (place, []))[1].append(detail)
    keys = keys_in(values) if model is Job and isinstance(values, Mapping) else {}
    return [problem for mistakes in by_key.values() for problem in _problems(*mistakes, keys)]


def _located(detail: ErrorDetails, schema: Schema | None, values: Any) -> _Place:
    key, around, written = "", schema or {}, values
    for part in detail["loc"]:
        value, inner = _item(written, part), inside(schema or {}, part, written)
        if key == WORKFLOW and isinstance(part, int):
            if isinstance(written, Mapping | str):
                value = written  # the only section of what may be a list
            elif len(written) > 1:
                key = join(key, f"[{part}]")
        elif inner is None and value is _ABSENT:
            continue  # one of the types that the key takes
        elif isinstance(part, int) and "properties" not in (inner or {}):
            written = value  # an item of a list is named by the key of the list
            continue
        else:
            key = join(key, f"[{part}]" if isinstance(part, int) else part)
        schema, around, written = inner, schema or {}, value
    return _Place(key, schema, around, detail["input"] if written is _ABSENT else written)


def _item(values: Any, part: int | str) -> Any:
    if isinstance(values, Mapping):
        return values.get(part, _ABSENT)
    is_there = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
    return values[part] if is_there else _ABSENT


def _problems(
    place: _Place, errors: Sequence[ErrorDetails], keys: Mapping[str, Key]
) -> Iterator[Problem]:
    """Yield the problems of a key; of a union, each type has made a mistake of its own."""
    key, schema, _, written = place
    causes = [error.get("ctx", {}).get("error") for error in errors]
    if refusals := [cause for cause in causes if isinstance(cause, RefusedValueError)]:
        for problem in refusals[0].problems:
            value = value_at(written, problem.key) if problem.key else written
            if value is None and problem.key in keys:
                value = keys[problem.key].default
            text = problem.given or given(value)
            yield Problem(join(key, problem.key), text, problem.allowed, problem.hint)
    elif errors[0]["type"] == "extra_forbidden":
        yield Problem(key, UNKNOWN, "", _question(place, keys))
    elif errors[0]["type"] == "missing":
        yield Problem(key, MISSING, words(schema or {}))
    else:
        hints = dict.fromkeys(_hint(error, written) for error in errors)
        yield Problem(key, given(written), words(schema or {}), "; ".join(filter(None, hints)))


def _question(place: _Place, keys: Iterable[str]) -> str:
    """Return a question that suggests the nearest key, of the job or beside an unknown one."""
    above, own = place.key.rpartition(".")[0], place.around.get("properties", {})
    if near := nearest_keys(place.key, [*keys, *(join(above, name) for name in own)]):
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(own)}" if own else "leave it out"


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
