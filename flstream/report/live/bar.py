"""Bars of text, which can be read without colour and, where need be, in ASCII."""

from __future__ import annotations

from rich.text import Text

# Done, half a column of it, and yet to come. They differ in shape, not in colour alone.
_LINES = ("\u2501", "\u2578", "\u2500")
_ASCII = ("#", "#", ".")


def bar(done: float, total: float, width: int, *, style: str, ascii_only: bool = False) -> Text:
    """A bar of exactly ``width`` columns, filled as far as ``done`` is of ``total``."""
    full, half, rest = _ASCII if ascii_only else _LINES
    part = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    # Full only when it is: a bar that is full before its time says that something hangs.
    halves = int(part * 2 * max(width, 0))
    filled = full * (halves // 2) + half * (halves % 2)
    return Text.assemble((filled, style), (rest * (width - len(filled)), "dim"))


def percent(done: float, total: float) -> str:
    """How much it is in whole percent, rounded down."""
    return f"{min(int(100 * done / total), 100)}%" if total > 0 else ""
