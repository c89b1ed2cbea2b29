"""Progress bars as text, legible without colour, and in ASCII if required."""

from __future__ import annotations

from rich.text import Text

# Characters for a full column, half a column and an empty one, which differ in shape.
_LINES = ("\u2501", "\u2578", "\u2500")
_ASCII = ("#", "#", ".")


def bar(done: float, total: float, width: int, *, style: str, ascii_only: bool = False) -> Text:
    """Draw a progress bar.

    Args:
        done: amount that is done.
        total: whole amount, in the same unit.
        width: width of the bar in columns.
        style: style of the filled part, as rich names it.
        ascii_only: whether to use ASCII characters only.
    """
    full, half, rest = _ASCII if ascii_only else _LINES
    part = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    # Rounded down: a bar that is full too early would look as if something had hung.
    halves = int(part * 2 * max(width, 0))
    filled = full * (halves // 2) + half * (halves % 2)
    return Text.assemble((filled, style), (rest * (width - len(filled)), "dim"))


def percent(done: float, total: float) -> str:
    """Format a share in whole percent, rounded down; an empty text if the total is 0."""
    return f"{min(int(100 * done / total), 100)}%" if total > 0 else ""
