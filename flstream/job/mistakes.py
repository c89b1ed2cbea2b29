"""pydantic's errors, as problems in the terms of the job file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flstream.job.annotations import choices, described, entries_of, is_in_words, kind_of
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

if TYPE_CHECKING:
    from flstream.job.key import Key

_ABSENT = object()


class _Mistake(NamedTuple):
    """An error of pydantic's, and what it is about.

    Attributes:
        detail: The error.
        key: Dotted name of the key, or of an entry of its section.
        place: The key, with the places in the lists that it takes.
        annotation: Type of the values of the key; None for what is no key.
        written: Value as the file gives it; one that it does not give is the default.
    """

    detail: ErrorDetails
    key: str
    place: str
    annotation: Any
    written: Any


def problems_of(error: ValidationError, keys: Mapping[str, Key], values: Any) -> list[Problem]:
    """Return pydantic's errors as problems, one for each key that has any.

    Args:
        error: Errors of a section, or of the value of a key.
        keys: Keys of the section, by their names in it; ``""`` is the key of a value.
        values: The section or the value, as written.
    """
    found: dict[str, list[_Mistake]] = {}
    for detail in error.errors(include_url=False):
        mistake = _located(detail, keys, values)
        found.setdefault(mistake.key, []).append(mistake)
    return [problem for each in found.values() for problem in _problems(each, keys)]


def _located(detail: ErrorDetails, keys: Mapping[str, Key], values: Any) -> _Mistake:
    key, indexes, there, leaf = "", "", values, keys.get("")
    annotation = None if leaf is None else leaf.annotation
    for part in detail["loc"]:
        inner = _item(there, part)
        if leaf is not None and inner is _ABSENT:
            break  # one of the types that the key takes
        if isinstance(part, str):
            key = join(key, part)
        elif leaf is not None:
            indexes += f"[{part}]"
        elif isinstance(there, Mapping):
            continue  # the only section of what may be a list
        elif isinstance(there, list | tuple) and len(there) > 1:
            key = join(key, f"[{part}]")
        if leaf is None:
            leaf = keys.get(key)
            annotation = None if leaf is None else leaf.annotation
        elif isinstance(part, str):
            annotation = entries_of(annotation)
        there = inner
    written = detail["input"] if there is _ABSENT else there
    return _Mistake(detail, key, join(key, indexes), annotation, written)


def _item(values: Any, part: int | str) -> Any:
    if isinstance(values, Mapping):
        return values.get(part, _ABSENT)
    is_there = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
    return values[part] if is_there else _ABSENT


def _problems(mistakes: Sequence[_Mistake], keys: Mapping[str, Key]) -> list[Problem]:
    """Return the problems of a key; of a union, each type has made a mistake of its own."""
    first, key = mistakes[0], mistakes[0].key
    errors = [(each, each.detail.get("ctx", {}).get("error")) for each in mistakes]
    refusals = [(each, error) for each, error in errors if isinstance(error, RefusedValueError)]
    if refusals:
        return [
            _refused(each, mistake, keys) for mistake, error in refusals for each in error.problems
        ]
    if first.detail["type"] == "missing":
        return [Problem(key, MISSING, keys[key].allowed if key in keys else "")]
    if first.detail["type"] == "extra_forbidden":
        return [Problem(key, UNKNOWN)]
    if first.annotation is None:
        above = f"{key}." if key else ""
        inside = [name.removeprefix(above) for name in keys if name.startswith(above)]
        return [Problem(key, given(first.written), f"a section {{ {', '.join(inside)} }}")]
    hints = dict.fromkeys(_hint(each) for each in mistakes if each.written is first.written)
    hint = "; ".join(filter(None, hints)) or _example(mistakes)
    return [Problem(key, given(first.written), described(first.annotation), hint)]


def _refused(problem: Problem, mistake: _Mistake, keys: Mapping[str, Key]) -> Problem:
    # A problem with a full path (`model.factory`) keeps it.
    is_full = problem.key in keys and problem.key != ""
    key = problem.key if is_full else join(mistake.place, problem.key)
    return Problem(key, problem.given or given(mistake.written), problem.allowed, problem.hint)


def _hint(mistake: _Mistake) -> str:
    detail, annotation, written = mistake.detail, mistake.annotation, mistake.written
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "literal_error":
            names = [*choices(annotation)]
            # One alone is in the description.
            return did_you_mean(str(written).lower(), names) if len(names) > 1 else ""
        case "string_pattern_mismatch":
            return hint_of_name(written)
    return "" if is_in_words(annotation) else detail["msg"]


def _example(mistakes: Sequence[_Mistake]) -> str:
    """Return how a value is written, for who gives another type; empty for any other mistake."""
    kind = kind_of(mistakes[0].annotation)
    is_needed = any(each.detail["type"].endswith("_type") for each in mistakes)
    return f"write {kind.example}" if kind is not None and kind.example and is_needed else ""
