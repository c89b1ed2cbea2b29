"""Being stopped by a signal: how it is heard, turned into Ctrl-C, or made to wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a plain ``kill``, and the terminal's closing."""

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handling(signals: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Have signals handled so for as long as the block lasts.

    Only the main thread may set handlers, and it is the one that they run in: on any other thread
    nothing is changed.
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
    """Have SIGTERM and the terminal's closing do what Ctrl-C does: raise KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    with handling(STOPS, stop):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals wait while something is taken away that must not be left half there.

    They take effect when the block ends, if this is the main thread, which is the one they go to.
    """
    came: list[int] = []
    try:
        with handling(STOPS, lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])
