"""Lines that tell a user what an argument of another framework means here."""

from __future__ import annotations

from functools import cache

from flstream.report.console import make_console


@cache
def notice(text: str) -> None:
    """Print a line on stdout, unless this process has printed it before."""
    make_console().print(f"flstream: {text}", style="dim", soft_wrap=True)
