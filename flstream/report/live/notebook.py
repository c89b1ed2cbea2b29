"""Display of a run's progress in a notebook: the frame of the live view, replaced in place."""

from __future__ import annotations

import io
import time
from typing import Any

from rich.console import Console
from rich.text import Text

from flstream.report.live.frame import render
from flstream.report.live.site_table import memory_now
from flstream.report.live.state import RunState
from flstream.telemetry.events import AnyEvent, RunFinished
from flstream.telemetry.memory import MemorySampler

_WIDTH, _HEIGHT = 100, 28
_FRAME_SECONDS = 0.5
# A notebook's own colours of code, whether it is light or dark.
_PRE = '<pre style="line-height:1.3; overflow-x:auto; white-space:pre">{code}</pre>'


class NotebookView:
    """Listener of a run that shows its progress below the cell.

    Events are handled in the cell's own thread, from which alone a display reaches its cell.
    """

    def __init__(self) -> None:
        self._state = RunState(began=time.time())
        self._sampler: MemorySampler | None = None
        self._display: Any = None
        self._drawn = float("-inf")

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event of the run."""
        self._state.apply(event)
        self._sampler = sampler
        is_last = isinstance(event, RunFinished)
        if is_last or time.monotonic() - self._drawn >= _FRAME_SECONDS:
            self._draw()
            self._drawn = time.monotonic()

    def _draw(self) -> None:
        from IPython.display import HTML, display

        assert self._sampler is not None
        memory = memory_now(self._sampler)
        frame = HTML(_as_html(render(self._state, memory, time.time(), _WIDTH, _HEIGHT)))
        if self._display is None:
            self._display = display(frame, display_id=True)
        else:
            self._display.update(frame)


def _as_html(lines: list[Text]) -> str:
    console = Console(
        file=io.StringIO(), record=True, width=_WIDTH, force_terminal=True, force_jupyter=False
    )
    console.print(Text("\n").join(lines), soft_wrap=True)
    body = console.export_html(inline_styles=True, code_format="{code}")
    return _PRE.format(code=body if body.strip() else "starting")
