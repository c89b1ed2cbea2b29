"""Consoles for output to a terminal, pipe or file."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions
from rich.text import Text

from flstream.report.table import Table
from flstream.report.text import wrapped
from flstream.text import MOST_ON_A_LINE, quotable

LABEL_WIDTH = 15
"""Columns of the labels of facts."""


class _Console(Console):
    """Console that discards further output once its reader has closed the pipe.

    On the alternate screen its size never exceeds that of the terminal, even if COLUMNS does: a
    line that wraps would move all others.
    """

    @property
    def options(self) -> ConsoleOptions:
        """Default options to render with."""
        options = super().options
        if not self.is_alt_screen:
            return options
        with suppress(OSError):
            real = os.get_terminal_size(self.file.fileno())
            # A terminal whose size was never set reports 0.
            width = min(options.size.width, real.columns or options.size.width)
            height = min(options.size.height, real.lines or options.size.height)
            options.size = ConsoleDimensions(width, height)
        return options

    def on_broken_pipe(self) -> None:
        """Redirect further output, the interpreter's last flush too, to nowhere."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def make_console(*, file: IO[str] | None = None, **options: Any) -> Console:
    """Create a console for results, with escape codes for terminals only.

    Args:
        file: Stream to write to; None for stdout.
        options: Other arguments of rich's console, such as ``width``.
    """
    stream = file or sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        # Characters that the terminal's encoding lacks are shown escaped.
        stream.reconfigure(errors="backslashreplace")
    # The stream is that of this moment: imports of a job's code put another in the place of
    # sys.stdout for a while, also on other threads. No markup, since the output has names from
    # files and scripts. In a notebook, text stays text.
    return _Console(
        file=stream, markup=False, highlight=False, emoji=False, force_jupyter=False, **options
    )


def error_console() -> Console:
    """Create a console for errors and progress, which writes to stderr."""
    return make_console(file=sys.stderr)


def print_tables(console: Console, *tables: Table) -> None:
    """Print tables that have rows, each below a blank line and its title."""
    for table in tables:
        if table.rows:
            console.print()
            if table.title:
                for line in wrapped([table.title], console.width):
                    console.print(Text(line, style="bold"))
            console.print(table)


def print_facts(console: Console, facts: Iterable[tuple[str, Text]], width: int | None) -> None:
    """Print facts below one another, each beside its label.

    Without a width values stay whole, as do those with ``no_wrap``.
    """
    for label, value in facts:
        lines = [value]
        if width is not None and not value.no_wrap:
            lines = list(value.wrap(console, max(width - LABEL_WIDTH, 1)))
        for number, line in enumerate(lines):
            line.rstrip()
            head = "" if number else label
            console.print(Text(head.ljust(LABEL_WIDTH), style="dim") + line, soft_wrap=True)


def is_live(console: Console) -> bool:
    """Return whether a console is a terminal whose cursor can move.

    FORCE_COLOR enables colours in a pipe, which is no terminal all the same.
    """
    return console.file.isatty() and not console.is_dumb_terminal


def in_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def report_error(message: str) -> None:
    """Print an error message to stderr.

    On a terminal lines are wrapped between words and continue indented; elsewhere they stay whole,
    so that programs can search them. One that is very long lacks its middle.
    """
    console = error_console()
    lines = [quotable(line, MOST_ON_A_LINE) for line in f"error: {message}".split("\n")]
    if console.is_terminal:
        lines = [part for line in lines for part in _wrapped(line, console.width)]
    for line in lines:
        text = Text(line)
        if line.startswith("error:"):
            text.stylize("bold red", 0, len("error:"))
        console.print(text, soft_wrap=True)


def _wrapped(line: str, width: int) -> list[str]:
    margin = line[: len(line) - len(line.lstrip())]
    # A key path or a file name is never broken, even if it exceeds the width.
    indent = f"{margin}    "
    lines = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines or [""]
