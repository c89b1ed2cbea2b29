"""Display of a run's progress: a live view on a terminal and in a notebook, else lines of text.

Events only update the state; a thread draws it at a fixed rate, so that many events neither slow
the run down nor make the view flicker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

from flstream.report.console import in_notebook, is_live
from flstream.report.live.frame import render
from flstream.report.live.notebook import NotebookView
from flstream.report.live.plain import PlainView
from flstream.report.live.screen import Screen
from flstream.report.live.site_table import Memory, memory_now
from flstream.report.live.state import RunState
from flstream.simulation.launcher import Listener
from flstream.telemetry.events import AnyEvent
from flstream.telemetry.memory import MemorySampler

_FRAME_SECONDS = 0.125
# Maximum share of the time that drawing may take, where it is slow.
_MOST_SHARE = 0.05


@contextmanager
def watching(console: Console) -> Iterator[Listener | None]:
    """Show the progress of a run on a console until the end of the block.

    Yields:
        The listener for :func:`flstream.simulation.launcher.simulate`; None for a quiet console.
    """
    if console.quiet:
        yield None
        return
    if in_notebook():
        yield NotebookView()
        return
    if not is_live(console):
        yield PlainView(console)
        return
    live = _LiveView(console)
    thread = threading.Thread(target=live.draw_until_over, name="live-view", daemon=True)
    thread.start()
    try:
        yield live.listen
    finally:
        live.over.set()
        thread.join()


class _LiveView:
    """The live view of a run, shared by the thread that runs it and the one that draws.

    Args:
        console: console of the terminal.

    Attributes:
        over: event that ends the drawing.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen = Screen(console)
        self._state = RunState(began=time.time())
        self._lock = threading.Lock()
        self._sampler: MemorySampler | None = None
        self.over = threading.Event()

    def listen(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event of the run."""
        with self._lock:
            self._state.apply(event)
            self._sampler = sampler

    def draw_until_over(self) -> None:
        """Draw frames until ``over`` is set."""
        # A closed terminal (OSError) ends the view, not the run. Any other exception is a defect,
        # whose traceback is printed once the former screen is restored.
        with suppress(OSError), self._screen.shown():
            pause = 0.0
            while not self.over.wait(pause):
                began = time.thread_time()
                self._draw()
                spent = time.thread_time() - began
                pause = max(_FRAME_SECONDS, spent / _MOST_SHARE)

    def _draw(self) -> None:
        size = self._screen.size
        memory = self._memory()
        ascii_only = self._console.options.ascii_only
        with self._lock:
            lines = render(self._state, memory, time.time(), *size, ascii_only=ascii_only)
        self._screen.paint(lines, size)

    def _memory(self) -> Memory:
        return Memory() if self._sampler is None else memory_now(self._sampler)
