"""The alternate screen of a terminal, updated line by line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

# Interval of full repaints, since other programs may have written to the terminal, or the run may
# have been suspended with Ctrl-Z and continued.
_REPAINT_SECONDS = 5.0


class Screen:
    """The alternate screen of a terminal.

    Only lines that have changed are written, without erasing them first: nothing flickers, and a
    slow connection is not kept busy. The terminal's former content is restored at the end.

    Args:
        console: console of the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[Text] = []
        self._size = (0, 0)
        self._painted = float("-inf")

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and lines of the screen.

        They never exceed those of the terminal, even if COLUMNS does: a line that wraps would move
        all others.
        """
        width, height = self._console.size
        try:
            real = os.get_terminal_size(self._console.file.fileno())
        except OSError:
            return width, height
        # A terminal whose size was never set reports 0.
        return min(width, real.columns or width), min(height, real.lines or height)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the alternate screen until the end of the block, then restore the former one."""
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        try:
            yield
        finally:
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)

    def paint(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Replace the content of the screen.

        Args:
            lines: new lines, none wider and not more than the screen.
            size: columns and lines of the screen for which the lines were made.
        """
        now = time.monotonic()
        width, _ = size
        segments: list[Segment] = []
        if size != self._size:
            segments.append(Control.clear().segment)
            self._shown = []
        again = now - self._painted >= _REPAINT_SECONDS
        for index in range(max(len(lines), len(self._shown))):
            line = lines[index] if index < len(lines) else Text()
            before = self._shown[index] if index < len(self._shown) else None
            # `Text` compares its styles as well.
            if line != before or again:
                segments += self._line(line, index, width)
        if again or size != self._size:
            self._painted = now
        self._shown, self._size = list(lines), size
        if segments:
            self._console.print(Segments(segments), end="", crop=False)

    def _line(self, line: Text, index: int, width: int) -> list[Segment]:
        options = self._console.options.update(width=width, no_wrap=True, overflow="crop")
        (row, *_) = self._console.render_lines(line, options, pad=False)
        segments = [Control.move_to(0, index).segment, *row]
        # After a full line the cursor is still on its last column, which must not be erased.
        if Segment.get_line_length(row) < width:
            segments.append(Control((ControlType.ERASE_IN_LINE, 0)).segment)
        return segments
