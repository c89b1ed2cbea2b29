"""Formats of names, metrics, rates and times for display."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from flstream.telemetry.events import Metrics, PrivacySpent
from flstream.text import printable
from flstream.units import format_bytes, format_seconds

ELLIPSIS = "..."
GAP = "  "
# Lines of a sentence that are shown, since metadata may be of any length.
_MOST_WRAPPED = 8
# Wrapping asks a console only for how to justify, which is not done here.
_ANY_CONSOLE = Console()


def elide(text: str, width: int) -> str:
    """Shorten a name to at most ``width`` columns by leaving out its middle."""
    if cell_len(text) <= width:
        return text
    if width <= len(ELLIPSIS):
        return set_cell_size(text, width)
    room = width - len(ELLIPSIS)
    head = set_cell_size(text, room // 2)
    # Cut from the end, on the reversed text; a wide character may leave a blank at the cut.
    tail = set_cell_size(text[::-1], room - room // 2)[::-1]
    return f"{head}{ELLIPSIS}{tail}"


def clip(text: str, width: int) -> str:
    """Shorten a sentence to at most ``width`` columns by leaving out its end."""
    if cell_len(text) <= width:
        return text
    room = max(width - len(ELLIPSIS), 0)
    return set_cell_size(set_cell_size(text, room).rstrip() + ELLIPSIS, width).rstrip()


def format_metric(value: float | None) -> str:
    """Format a metric: ``0.9731``, ``12.4000``, ``1.23e+05``; None as ``-``."""
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.4f}"
    return f"{value:.3g}"


def format_metrics(metrics: Metrics) -> str:
    """Format several metrics on a line: ``accuracy 0.9731, loss 0.1020``."""
    return ", ".join(f"{printable(name)} {format_metric(metrics[name])}" for name in metrics)


def format_epsilon(spent: PrivacySpent) -> str:
    """Format the epsilon that a job has spent: ``2.31``, or ``infinite``."""
    return "infinite" if spent.epsilon is None else f"{spent.epsilon:.4g}"


def privacy_words(spent: PrivacySpent) -> str:
    """Format the spent privacy of a job: `epsilon 2.31, 40% clipped to 0.5`."""
    return f"epsilon {format_epsilon(spent)}, {spent.clipped:.0%} clipped to {spent.clip_norm:.4g}"


def format_elapsed(seconds: float) -> str:
    """Format elapsed seconds with one decimal, for a stable width: ``5.0 s``."""
    return f"{seconds:.1f} s" if 0 <= seconds < 59.95 else format_seconds(max(seconds, 0.0))


def format_clock(seconds: float) -> str:
    """Format elapsed seconds as hours, minutes and seconds: ``00:04:10``."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def format_date(seconds: float) -> str:
    """Format a time in seconds since the epoch: ``2026-01-31 12:00 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: ``1 site``, ``4 sites``, ``2 processes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def pieces(chunk_size: int) -> str:
    """Describe a chunk size in bytes: ``chunks of 2 MiB``, or one piece for 0."""
    return f"chunks of {format_bytes(chunk_size)}" if chunk_size else "each model in one piece"


def resume_command(run: Path) -> str:
    """Return the command line that resumes a run from its directory."""
    path = shlex.quote(shown_path(run))
    return f"flstream simulate {path} --run-dir {path} --resume"


def path_labels(paths: Sequence[Path]) -> list[str]:
    """Return a unique label for each path: its last part, with parents where needed."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = [str(Path(*path.parts[-depth:])) for path in paths]
        if len(set(labels)) == len(set(paths)):
            break
    return [printable(label) for label in labels]


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies below, else as is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def wrapped(sentences: Iterable[str], width: int | None, most: int = _MOST_WRAPPED) -> list[str]:
    """Wrap sentences to a terminal's width, with all lines but the first indented.

    Without a width, as where the output is not a terminal, they stay whole.
    """
    if width is None:
        return list(sentences)
    lines: list[str] = []
    for sentence in sentences:
        if cell_len(sentence) <= width:
            lines.append(sentence)
            continue
        first, *others = [
            line.plain.rstrip()
            for line in Text(sentence).wrap(_ANY_CONSOLE, max(width - len(GAP), 1))
        ]
        lines += [first, *(GAP + line for line in others[: most - 1])]
        if len(others) >= most:
            lines.append(f"{GAP}({len(sentence):,} characters in all)")
    return lines
