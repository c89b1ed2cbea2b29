"""Plain values of a job file, and jobs, written as HOCON text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from flstream.errors import UsageError
from flstream.text import shortened

if TYPE_CHECKING:
    from flstream.job.fields import Section
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
            kind = type(value).__name__
            raise UsageError(f"a {kind} is no value of a job file: {shortened(repr(value), 60)}")


def render_values(values: Mapping[str, Any]) -> str:
    """Return HOCON text of plain values, with a block for each section.

    Args:
        values: Values by key; a section is a mapping. They are not checked.
    """
    return "\n".join(_lines(values, None, 0)) + "\n"


def render_job(job: Job) -> str:
    """Return HOCON text that loads as an equal job from any folder.

    The first line of a key's meaning stands above it.
    """
    return "\n".join(_lines(job.written(), job, 0)) + "\n"


def _lines(values: Mapping[str, Any], section: Section | None, depth: int) -> Iterator[str]:
    """Yield the lines of a section; a job's with the meanings of their keys."""
    indent = "  " * depth
    fields = {} if section is None else type(section).model_fields
    attributes = {field.alias or name: name for name, field in fields.items()}
    for name, value in values.items():
        key = name if _BARE.fullmatch(name) else render_value(name)
        attribute = attributes.get(name, name)
        inner = None if section is None else getattr(section, attribute)
        stages = inner if depth == 0 and isinstance(inner, tuple) else ()
        if len(stages) > 1:
            yield from ("", f"{key} = [")
            for stage, written in zip(stages, value, strict=True):
                yield from ("  {", *_lines(written, stage, 2), "  },")
            yield "]"
            continue
        inner = stages[0] if stages else inner
        is_block = isinstance(inner, BaseModel) if section else isinstance(value, Mapping) and value
        if is_block and isinstance(value, Mapping):
            yield from ([""] if depth == 0 else [])
            yield f"{indent}{key} {{"
            yield from _lines(value, inner, depth + 1)
            yield f"{indent}}}"
        else:
            if section is not None and not isinstance(inner, BaseModel):
                meaning = section.meaning_of(attribute)
                yield from [f"{indent}# {meaning.partition(chr(10))[0]}"] if meaning else []
            yield f"{indent}{key} = {render_value(value)}"
