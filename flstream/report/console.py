"""The one way to a terminal, a pipe or a file: colour, width and closed pipes are settled here."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from typing import IO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from flstream.report.text import printable


class _Console(Console):
    """A console that falls silent when its reader is gone: what a run does goes on regardless."""

    def on_broken_pipe(self) -> None:
        """Send what else is written, by the interpreter's last flush too, to nowhere."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def make_console(*, file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for results. It follows NO_COLOR, and writes no escape codes but to a terminal.

    Args:
        file: to write to instead of stdout.
        width: columns, instead of the terminal's (80 where there is none).
    """
    stream = file or sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        # Where a name has letters that the terminal does not know, it is shown escaped.
        stream.reconfigure(errors="backslashreplace")
    # What is printed holds names from files and from scripts, so nothing in it is markup.
    return _Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def error_console() -> Console:
    """A console like it for errors and for progress beside a result: it writes to stderr."""
    return make_console(file=sys.stderr)


def new_table(*columns: str) -> Table:
    """A table without a frame: the first column is what a row is about, the rest are numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def print_section(console: Console, title: str, *content: RenderableType) -> None:
    """Print a blank line, a head, and what is below it."""
    console.print()
    console.print(Text(title, style="bold"))
    for each in content:
        console.print(each)


def is_live(console: Console) -> bool:
    """Whether what is on a console may be changed again.

    One may be told to use colours in a pipe (FORCE_COLOR), but never to move the cursor there.
    """
    return console.file.isatty() and not console.is_dumb_terminal


def report_error(message: str) -> None:
    """Print what is wrong to stderr.

    On a terminal lines are broken between words and continue indented; elsewhere they stay whole,
    for whoever searches them.
    """
    console = error_console()
    lines = f"error: {message}".split("\n")
    if console.is_terminal:
        lines = [part for line in lines for part in _wrapped(line, console.width)]
    for line in lines:
        text = Text(printable(line))
        if line.startswith("error:"):
            text.stylize("bold red", 0, len("error:"))
        console.print(text, soft_wrap=True)


def _wrapped(line: str, width: int) -> list[str]:
    margin = line[: len(line) - len(line.lstrip())]
    # A key path or a file name is never cut: it runs over rather than be two.
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=f"{margin}    ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
