"""What a service does when nothing comes: receivers stall, fall silent, or do not come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from flstream.streaming.connection import Connection
from flstream.streaming.receiver import RECONNECT_SECONDS
from flstream.streaming.refs import Ref

SILENT_SECONDS = 10.0
"""Seconds without a sign of life after which a channel that may die in silence is given up."""

# Seconds after which it is looked again: a selector can wait for 24 days at most.
_LONGEST_WAIT = 3600.0


class Deadlines:
    """The times at which receivers are given up.

    Args:
        drop: Called with a connection that is silent, and why that is its end.
        lose: Called with a receiver that does not come back, and why its last connection ended.
    """

    def __init__(
        self,
        drop: Callable[[Connection, str], None],
        lose: Callable[[str, str], None],
    ) -> None:
        self._drop = drop
        self._lose = lose
        self._refs: list[Ref] = []
        self._connections: set[Connection] = set()
        self._away: dict[str, tuple[float, str]] = {}
        # Time at which the next of them is due, if nothing comes of it.
        self._next = math.inf

    def watch(self, ref: Ref) -> None:
        """Give up receivers of a ref that stall."""
        self._refs.append(ref)
        self._next = 0.0  # to be found out

    def watch_silence(self, connection: Connection) -> None:
        """Drop a connection that is silent, where that says something."""
        if connection.channel.beats:
            connection.active_at = time.monotonic()
            self._connections.add(connection)
            self._next = 0.0

    def forget(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)

    def expect_back(self, receiver: str, reason: str) -> None:
        """Give a receiver up that has no connection, unless it comes back."""
        self._away[receiver] = time.monotonic() + RECONNECT_SECONDS, reason
        self._next = 0.0

    def is_back(self, receiver: str) -> None:
        """Expect a receiver no longer."""
        self._away.pop(receiver, None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until something may be due; None if nothing can."""
        if self._next == math.inf:
            return None
        return min(max(self._next - time.monotonic(), 0.0), _LONGEST_WAIT)

    def act(self) -> None:
        """Give up the receivers whose time is over."""
        now = time.monotonic()
        if now < self._next:
            return
        times = [math.inf]
        for ref in self._refs:
            for receiver, seconds in ref.stalled().items():
                if seconds > 0:
                    times.append(now + seconds)
                else:
                    ref.receiver_stalled(receiver)
        self._refs = [ref for ref in self._refs if ref.source is not None]
        for connection in list(self._connections):
            # What came while others were served is a sign, too.
            if connection.active_at + SILENT_SECONDS <= now and connection.channel.wait(0):
                connection.active_at = now
            times.append(connection.active_at + SILENT_SECONDS)
            if times[-1] <= now:
                self._drop(connection, f"it gave no sign of life for {SILENT_SECONDS:g} s")
        for receiver, (until, reason) in list(self._away.items()):
            times.append(until)
            if until <= now:
                del self._away[receiver]
                self._lose(receiver, reason)
        self._next = min(time for time in times if time > now)
