"""Handling of the signals that stop a run: SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run: of Ctrl-C, of a plain ``kill``, and of a terminal that is closed."""


@contextmanager
def handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle the signals that stop a run with a function until the end of the block.

    Handlers can be set, and are run, by the main thread alone; in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOPS}
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
        with handling(stop):
            yield
    except KeyboardInterrupt as interrupt:
        traceback.clear_frames(interrupt.__traceback__)  # that they end here
        raise
    finally:
        sys.unraisablehook = report


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay these signals until the end of the block, such as while files are removed."""
    came: list[int] = []
    try:
        with handling(lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])
