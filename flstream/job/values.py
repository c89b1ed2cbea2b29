"""Plain values of a job file: nesting of dotted keys, and rendering as HOCON text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# pyhocon 0.3.63 knows these escapes and no others (not \u, \b, \f or \/), and turns a bare
# tab inside quotes into spaces.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def render_value(value: Any) -> str:
    """Return HOCON text, on one line, that parses to this plain value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return f'"{str(value).translate(_ESCAPES)}"'
        case list():
            return f"[{', '.join(map(render_value, value))}]"
        case dict():
            # Quoted, because HOCON reads a bare `include` as its own word.
            pairs = (f'"{key}" = {render_value(inner)}' for key, inner in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case _:
            raise TypeError(f"{type(value).__name__} is not a value of a job file")


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
