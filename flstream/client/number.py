"""A number, as training code has it."""

from __future__ import annotations

from typing import Any

# Text that float() would read as a number.
_TEXT = (str, bytes, bytearray)


def number_of(value: Any) -> float | None:
    """Return a value as a float; None if it is no number or too large for a float.

    Args:
        value: A number of Python, or a scalar of NumPy or torch of whatever shape. Text is none.
    """
    try:
        # NumPy and torch have this for what holds one element.
        plain = value.item() if hasattr(value, "item") else value
        return None if isinstance(plain, _TEXT) else float(plain)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def no_number(value: Any) -> str:
    """Describe a value that :func:`number_of` takes for no number, for a message."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "an int that no float can hold"
    shape = getattr(value, "shape", None) or ()
    of = f" of shape {list(shape)}" if shape else ""
    return f"a {type(value).__name__}{of} that is no number"
