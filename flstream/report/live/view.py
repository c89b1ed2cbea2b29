"""Display of a run's progress: live on a terminal or in a notebook, else as lines.

Events only update the state; a thread draws it at a fixed rate, so that many events neither slow
the run down nor make the view flicker.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from flstream.report.console import in_notebook, is_live, make_console
from flstream.report.live.frame import LiveMemory, render
from flstream.report.live.plain import PlainView
from flstream.report.live.run_state import LiveRun
from flstream.simulation.launcher import Listener
from flstream.telemetry.events import AnyEvent, RunFinished
from flstream.telemetry.memory import MemorySampler

_FRAME_SECONDS = 0.125
# Maximum share of the time that drawing may take, where it is slow.
_MOST_SHARE = 0.05
_NOTEBOOK_FRAME_SECONDS, _TICK_SECONDS = 0.5, 1.0
_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 100, 28
# A notebook's own colours of code, whether it is light or dark.
_PRE = '<pre style="line-height:1.3; overflow-x:auto; white-space:pre">{code}</pre>'


@contextmanager
def watching(console: Console, *, has_screen: bool = True) -> Iterator[Listener | None]:
    """Show the progress of a run on a console until the end of the block.

    Yields its listener; None for a quiet console. Without the screen, there are lines of text.
    """
    if console.quiet:
        yield None
    elif in_notebook():
        yield notebook_listener()
    elif has_screen and is_live(console):
        view = LiveView()
        with _thread(_draw_until, view, console):
            yield view.listen
    else:
        lines = PlainView(console)
        with _thread(_tick_until, lines):
            yield lines


@contextmanager
def _thread(target: Callable[..., None], *args: object) -> Iterator[None]:
    """Call a function in a thread, with an event that is set at the end of the block."""
    over = threading.Event()
    thread = threading.Thread(target=target, args=(over, *args), name="live-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class LiveView:
    """Live view of a run at this moment, for any console of rich.

    It is shared by the thread that runs the job and the one that draws.
    """

    def __init__(self) -> None:
        self._run = LiveRun(time.time())
        self._lock = threading.Lock()
        self._sampler: MemorySampler | None = None

    def listen(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event of the run."""
        with self._lock:
            self._run.apply(event)
            self._sampler = sampler

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the frame of this moment."""
        memory, sampler = LiveMemory(), self._sampler
        if sampler is not None:
            memory = LiveMemory(sampler.current_rss(), sampler.peaks(), sampler.peak_total_pss)
        height = options.height or console.height
        with self._lock:
            frame = render(self._run, memory, time.time(), options.max_width, height)
        yield from console.render(frame, options.update(no_wrap=True, overflow="crop", height=None))


def _draw_until(over: threading.Event, view: LiveView, console: Console) -> None:
    """Draw frames on the alternate screen of a terminal until an event is set."""
    live = Live(
        view,
        console=console,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    # A closed terminal (OSError) ends the view, not the run. Any other exception is a defect, whose
    # traceback is printed once the former screen is restored.
    with suppress(OSError), live:
        pause = _FRAME_SECONDS
        while not over.wait(pause):
            began = time.thread_time()
            live.refresh()
            spent = time.thread_time() - began
            pause = max(_FRAME_SECONDS, spent / _MOST_SHARE)


def _tick_until(over: threading.Event, view: PlainView) -> None:
    """Print phases of a run's start as lines, until that or an event ends it."""
    with suppress(OSError):  # a closed pipe
        while not view.start.is_over and not over.wait(_TICK_SECONDS):
            view.tick()


def notebook_listener() -> Listener:
    """Return a listener that shows a run below the cell."""
    from IPython.display import HTML, display

    view, shown, next_frame = LiveView(), display(HTML(_PRE.format(code="")), display_id=True), 0.0

    def listen(event: AnyEvent, sampler: MemorySampler) -> None:
        nonlocal next_frame
        view.listen(event, sampler)
        if time.monotonic() >= next_frame or isinstance(event, RunFinished):
            shown.update(HTML(_as_html(view)))
            next_frame = time.monotonic() + _NOTEBOOK_FRAME_SECONDS

    return listen


def _as_html(view: LiveView) -> str:
    width, height = _NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT
    console = make_console(
        file=io.StringIO(), record=True, force_terminal=True, width=width, height=height
    )
    console.print(view)
    return _PRE.format(code=console.export_html(inline_styles=True, code_format="{code}"))
