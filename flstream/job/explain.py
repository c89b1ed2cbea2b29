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


class _Mistake(NamedTuple):
    """An error of pydantic's, and its place in the job file.

    Attributes:
        detail: The error.
        key: Dotted name of the key.
        schema: JSON schema of its values; None for an unknown key.
        around: JSON schema of the section around it.
        written: Value as the file gives it, or else the default.
    """

    detail: ErrorDetails
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

    schema, by_key = schema_of(model), dict[str, list[_Mistake]]()
    for detail in error.errors(include_url=False):
        mistake = _located(detail, schema, values)
        by_key.setdefault(mistake.key, []).append(mistake)
    keys = keys_in(values) if model is Job and isinstance(values, Mapping) else {}
    return [problem for mistakes in by_key.values() for problem in _problems(mistakes, keys)]


def _located(detail: ErrorDetails, schema: Schema | None, values: Any) -> _Mistake:
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
    written = detail["input"] if written is _ABSENT else written
    return _Mistake(detail, key, schema, around, written)


def _item(values: Any, part: int | str) -> Any:
    if isinstance(values, Mapping):
        return values.get(part, _ABSENT)
    is_there = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
    return values[part] if is_there else _ABSENT


def _problems(mistakes: Sequence[_Mistake], keys: Mapping[str, Key]) -> Iterator[Problem]:
    """Yield the problems of a key; of a union, each type has made a mistake of its own."""
    first = mistakes[0]
    errors = [mistake.detail.get("ctx", {}).get("error") for mistake in mistakes]
    if refusals := [error for error in errors if isinstance(error, RefusedValueError)]:
        for problem in refusals[0].problems:
            written = value_at(first.written, problem.key) if problem.key else first.written
            if written is None and problem.key in keys:
                written = keys[problem.key].default
            text = problem.given or given(written)
            yield Problem(join(first.key, problem.key), text, problem.allowed, problem.hint)
    elif first.detail["type"] == "extra_forbidden":
        yield Problem(first.key, UNKNOWN, "", _question(first, keys))
    elif first.detail["type"] == "missing":
        yield Problem(first.key, MISSING, words(first.schema or {}))
    else:
        hint = "; ".join(filter(None, dict.fromkeys(map(_hint, mistakes))))
        yield Problem(first.key, given(first.written), words(first.schema or {}), hint)


def _question(mistake: _Mistake, keys: Iterable[str]) -> str:
    """Return a question that suggests the nearest key, of the job or beside an unknown one."""
    above = mistake.key.rpartition(".")[0]
    own = mistake.around.get("properties", {})
    if near := nearest_keys(mistake.key, [*keys, *(join(above, name) for name in own)]):
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(own)}" if own else "leave it out"


def _hint(mistake: _Mistake) -> str:
    detail = mistake.detail
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "literal_error":
            names = re.findall("'([^']*)'", detail["ctx"]["expected"])
            return did_you_mean(str(mistake.written).lower(), names) if len(names) > 1 else ""
        case "string_pattern_mismatch":
            return hint_of_name(mistake.written)
    return ""
