"""What is sent again and again while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flstream.errors import StreamingError


@contextmanager
def repeating(name: str, seconds: float, send: Callable[[], object]) -> Iterator[None]:
    """Send something again and again until the block ends, on a thread of its own.

    Args:
        name: Name of the thread.
        seconds: Time between two calls.
        send: Sends it. That the peer is gone ends the thread alone: whoever waits for the peer's
            messages sees that, too.
    """
    over = threading.Event()

    def repeat() -> None:
        with suppress(StreamingError):
            while not over.wait(seconds):
                send()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
