"""A number, as training code has it."""

from __future__ import annotations

from typing import Any


def number_of(value: Any) -> float | None:
    """Return a value as a float; None if it is no number.

    Args:
        value: A number of Python, a scalar of NumPy or torch of whatever shape, or the text of one.
    """
    try:
        # NumPy and torch have this for what holds one element.
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
