"""Rendering of plain values as HOCON text."""

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
