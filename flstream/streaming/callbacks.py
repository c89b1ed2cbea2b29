"""Calls of functions that the owners of refs have given."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from flstream.streaming.refs import Ref

OnSettled = Callable[[Ref], None]
"""Function called once with a ref that has settled."""


class Callbacks:
    """A thread for functions that may take long or fail, which are called one after another.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._thread: int | None = None

    def call(self, function: OnSettled, ref: Ref) -> None:
        """Call a function soon. What it raises is printed."""
        try:
            self._executor.submit(self._run, function, ref)
        except RuntimeError:  # closed meanwhile
            self._run(function, ref)

    def close(self) -> None:
        """Wait until all functions have been called, unless one of them calls this."""
        self._executor.shutdown(wait=threading.get_ident() != self._thread)

    def _run(self, function: OnSettled, ref: Ref) -> None:
        self._thread = threading.get_ident()
        try:
            function(ref)
        except Exception:  # of its owner, whose thread is elsewhere
            traceback.print_exc()
        finally:
            self._thread = None
