"""Following a run as it happens: live on a terminal, line by line anywhere else.

Events only change the state; a thread draws it at a pace of its own, so a storm of events costs the
run nothing and the picture stays steady.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

from flstream.report.console import is_live
from flstream.report.live.frame import render
from flstream.report.live.plain import PlainView
from flstream.report.live.screen import Screen
from flstream.report.live.site_table import Memory
from flstream.report.live.state import RunState
from flstream.simulator.launcher import Listener
from flstream.telemetry.events import AnyEvent
from flstream.telemetry.memory import MemorySampler

_FRAME_SECONDS = 0.125
# Where drawing is slow, it takes no more than this share of the time.
_MOST_SHARE = 0.05


@contextmanager
def watching(console: Console) -> Iterator[Listener]:
    """What to hand to ``simulate()`` so that the run can be followed on a console.

    A terminal is drawn on until the block ends, and then is as it was.
    """
    if not is_live(console):
        yield PlainView(console)
        return
    view = _LiveView(console)
    thread = threading.Thread(target=view.draw_until_over, name="live-view", daemon=True)
    thread.start()
    try:
        yield view.listen
    finally:
        view.over.set()
        thread.join()


class _LiveView:
    """What the thread of the run and the one that draws have in common."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen = Screen(console)
        self._state = RunState(began=time.time())
        self._lock = threading.Lock()
        self._sampler: MemorySampler | None = None
        self.over = threading.Event()

    def listen(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Take one event."""
        with self._lock:
            self._state.apply(event)
            self._sampler = sampler

    def draw_until_over(self) -> None:
        """Draw frame after frame: the whole life of the thread."""
        # Without its terminal a run goes on, and a defect is to be seen on the terminal's own
        # screen: it ends the view alone.
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
        sampler = self._sampler
        if sampler is None:
            return Memory()
        peaks = {name: memory.peak_rss for name, memory in sampler.peaks().items()}
        return Memory(sampler.current_rss(), peaks, sampler.peak_total_pss)
