"""pydantic's errors as mistakes in a job file: key, value given, values allowed, nearest key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flstream.job.keys import (
    WORKFLOW,
    allowed,
    inside,
    is_section,
    keys_in,
    nearest_keys,
    value_at,
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
        annotation: Type of its values; None for an unknown key.
        around: Type of the section around it.
        written: Value as the file gives it, or else the default.
    """

    detail: ErrorDetails
    key: str
    annotation: Any
    around: Any
    written: Any


def explain(error: ValidationError, model: Any, values: Any) -> list[Problem]:
    """Return pydantic's errors as problems, in one line for each key that has any.

    Args:
        error: Errors of a job, a section or a value.
        model: Its type.
        values: It, as the job file gives it.
    """
    by_key: dict[str, list[_Mistake]] = {}
    for detail in error.errors(include_url=False):
        mistake = _located(detail, model, values)
        by_key.setdefault(mistake.key, []).append(mistake)
    from flstream.job.job import Job

    keys = keys_in(values) if model is Job and isinstance(values, Mapping) else {}
    return [problem for mistakes in by_key.values() for problem in _problems(mistakes, keys)]


def _located(detail: ErrorDetails, model: Any, values: Any) -> _Mistake:
    key, annotation, around, written = "", model, model, values
    for part in detail["loc"]:
        value, inner = _item(written, part), inside(annotation, part, written)
        if key == WORKFLOW and isinstance(part, int):
            if isinstance(written, Mapping):
                value = written  # the only section of what may be a list
            elif len(written) > 1:
                key = join(key, f"[{part}]")
        elif inner is None and value is _ABSENT:
            continue  # one of the types that the key takes
        elif isinstance(part, int) and not is_section(inner):
            written = value  # an item of a list is named by the key of the list
            continue
        else:
            key = join(key, f"[{part}]" if isinstance(part, int) else part)
        annotation, around, written = inner, annotation, value
    written = detail["input"] if written is _ABSENT else written
    return _Mistake(detail, key, annotation, around, written)


def _item(values: Any, part: int | str) -> Any:
    if isinstance(values, Mapping):
        return values.get(part, _ABSENT)
    is_there = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
    return values[part] if is_there else _ABSENT


def _problems(mistakes: Sequence[_Mistake], keys: Iterable[str]) -> Iterator[Problem]:
    """Yield the problems of a key; of a union, each type has made a mistake of its own."""
    first = mistakes[0]
    errors = [mistake.detail.get("ctx", {}).get("error") for mistake in mistakes]
    if refusals := [error for error in errors if isinstance(error, RefusedValueError)]:
        for problem in refusals[0].problems:
            written = value_at(first.written, problem.key) if problem.key else first.written
            text = problem.given or given(written)
            yield Problem(join(first.key, problem.key), text, problem.allowed, problem.hint)
    elif first.detail["type"] == "extra_forbidden":
        yield Problem(first.key, UNKNOWN, "", _question(first, keys))
    elif first.detail["type"] == "missing":
        yield Problem(first.key, MISSING, allowed(first.annotation))
    else:
        hint = "; ".join(filter(None, dict.fromkeys(map(_hint, mistakes))))
        yield Problem(first.key, given(first.written), allowed(first.annotation), hint)


def _question(mistake: _Mistake, keys: Iterable[str]) -> str:
    """Return a question that suggests the nearest key, of the job or beside an unknown one."""
    above, _, _ = mistake.key.rpartition(".")
    own = getattr(mistake.around, "model_fields", {})
    beside = [join(above, field.alias or name) for name, field in own.items()]
    near = nearest_keys(mistake.key, [*keys, *beside])
    if near:
        return f"did you mean {' or '.join(near)}?"
    names = [field.alias or name for name, field in own.items()]
    return f"there are {', '.join(names)}" if names else "leave it out"


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
