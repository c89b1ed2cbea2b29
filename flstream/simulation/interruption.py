"""Handling of the signals that stop a run: SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run: of Ctrl-C, of a plain ``kill``, and of a terminal that is closed."""

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handling(signals: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals with a function until the end of the block.

    Handlers can be set, and are run, by the main thread alone; in another thread this does nothing.

    Args:
        signals: Signals to handle.
        handler: Handler of these signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP too, until the end of the block."""
    report = sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        # Objects that it leaves half made may fail to end, which concerns nobody any more.
        sys.unraisablehook = lambda unraisable: None
        raise KeyboardInterrupt

    try:
        with handling(STOPS, stop):
            yield
    except KeyboardInterrupt as interrupt:
        traceback.clear_frames(interrupt.__traceback__)  # that they end here
        raise
    finally:
        sys.unraisablehook = report


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay signals until the end of the block, such as while files are removed.

    Signals are handled in the main thread alone; in another thread this does nothing.
    """
    came: list[int] = []
    try:
        with handling(STOPS, lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])
