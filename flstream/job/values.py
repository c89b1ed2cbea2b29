"""Plain values of a job file, and jobs, written as HOCON text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flstream.job.job import Job

# pyhocon 0.3.63 knows these escapes and no others (not \u, \b, \f or \/), and turns a bare
# tab inside quotes into spaces.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# HOCON reads a bare `include` as its own word, and splits a bare key at its dots.
_BARE = re.compile(r"(?!include$)[A-Za-z_][A-Za-z0-9_-]*")
# Sizes and durations, which HOCON has without quotes.
_AMOUNT = re.compile(r"\d+(\.\d+)? ([KMGTPE]i?B|B|s)")


def render_value(value: Any) -> str:
    """Return HOCON text, on one line, that parses to this plain value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() if _AMOUNT.fullmatch(value):
            return value
        case str() | Path():
            return f'"{str(value).translate(_ESCAPES)}"'
        case list() | tuple():
            return f"[{', '.join(map(render_value, value))}]"
        case Mapping():
            # Quoted, because HOCON reads a bare `include` as its own word.
            pairs = (f'"{key}" = {render_value(inner)}' for key, inner in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case _:
            raise TypeError(f"{type(value).__name__} is not a value of a job file")


def render_values(values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Return HOCON text that reads as these plain values, with a block for each section.

    Args:
        values: Values by key; a section is a mapping. They are not checked.
        comments: Comments to write above keys, by dotted key; None for none.
    """
    return "\n".join(_lines(values, (), comments or {})) + "\n"


def render_job(job: Job) -> str:
    """Return HOCON text of all keys of a job that loads, from any folder, as an equal job."""
    from flstream.job.keys import keys_in

    values = job.written()
    meanings = {name: key.meaning.partition("\n")[0] for name, key in keys_in(values).items()}
    return render_values(values, meanings)


def _lines(
    values: Mapping[str, Any], above: tuple[str, ...], comments: Mapping[str, str]
) -> Iterator[str]:
    indent = "  " * len(above)
    for name, value in values.items():
        key = name if _BARE.fullmatch(name) else render_value(name)
        if comment := comments.get(".".join((*above, name))):
            yield f"{indent}# {comment}"
        if isinstance(value, Mapping) and value and not comment:
            yield from ([""] if not above else [])
            yield f"{indent}{key} {{"
            yield from _lines(value, (*above, name), comments)
            yield f"{indent}}}"
        else:
            yield f"{indent}{key} = {render_value(value)}"


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as sections within sections; mappings are copied."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inside = whole
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[name] = dict(value) if isinstance(value, Mapping) else value
    return whole
