"""Following a run as it happens: live on a terminal, line by line anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from flstream.report.live import live_view
from flstream.report.plain import PlainView
from flstream.simulator.launcher import Listener


@contextmanager
def watching(console: Console) -> Iterator[Listener]:
    """What to hand to ``simulate()`` so that the run can be followed on a console."""
    # A console may be told to use colours in a pipe (FORCE_COLOR), but never to move the cursor.
    if console.file.isatty() and not console.is_dumb_terminal:
        with live_view(console) as listener:
            yield listener
    else:
        yield PlainView(console)
