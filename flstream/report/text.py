"""How names, metrics and rates are written for people."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from flstream.telemetry.events import Metrics
from flstream.units import format_bytes

ELLIPSIS = "..."


def printable(text: str) -> str:
    """``text`` with every control character escaped, so that no name can act on a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def elide(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns, its middle left out: both ends of a name tell most."""
    if cell_len(text) <= width:
        return text
    if width <= len(ELLIPSIS):
        return set_cell_size(text, width)
    room = width - len(ELLIPSIS)
    head = set_cell_size(text, room // 2)
    # From the end, by turning the text around; a wide character may leave a blank at the cut.
    tail = set_cell_size(text[::-1], room - room // 2)[::-1]
    return f"{head}{ELLIPSIS}{tail}"


def pad(text: str, width: int) -> str:
    """``text`` elided and filled up with blanks to exactly ``width`` columns."""
    return set_cell_size(elide(text, width), width)


def format_metric(value: float | None) -> str:
    """A metric: ``0.9731``, ``12.4000``, ``1.23e+05``, ``3.2e-05``; ``-`` where there is none."""
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.4f}"
    return f"{value:.3g}"


def format_metrics(metrics: Metrics, width: int | None = None) -> str:
    """Several metrics on a line: ``accuracy 0.9731, loss 0.1020``.

    Those that would go beyond ``width`` columns are left out, and ``...`` stands for them.
    """
    texts = [f"{printable(name)} {format_metric(metrics[name])}" for name in metrics]
    line = ", ".join(texts)
    while width is not None and cell_len(line) > width and len(texts) > 1:
        texts.pop()
        line = ", ".join([*texts, ELLIPSIS])
    return line if width is None else elide(line, width)


def format_rate(bytes_per_second: float) -> str:
    """A throughput: ``310.5 MiB/s``."""
    return f"{format_bytes(round(bytes_per_second))}/s"


def counted(count: int, noun: str) -> str:
    """A number with its noun: ``1 site``, ``4 sites``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
