"""Receivers that stall: they are lost to a ref by its own deadline, whoever waits for it."""

from __future__ import annotations

import math
import time

from flstream.streaming.refs import Ref

# Seconds after which it is looked again: a selector can wait for 24 days at most.
_LONGEST_WAIT = 3600.0


class StallWatch:
    """The refs whose receivers may stall."""

    def __init__(self) -> None:
        self._refs: list[Ref] = []
        # Time at which the next receiver has stalled, if nothing comes of it.
        self._next = math.inf

    def add(self, ref: Ref) -> None:
        """Add a ref, if it has a deadline."""
        if ref.stall_timeout is not None:
            self._refs.append(ref)
            self._next = 0.0  # to be found out

    @property
    def seconds_left(self) -> float | None:
        """Seconds until a receiver may have stalled; None if none can."""
        if self._next == math.inf:
            return None
        return min(max(self._next - time.monotonic(), 0.0), _LONGEST_WAIT)

    def end_stalled(self) -> None:
        """Have the receivers lost that have stalled."""
        if time.monotonic() < self._next:
            return
        soonest = math.inf
        for ref in self._refs:
            for receiver, seconds in ref.stalled().items():
                if seconds > 0:
                    soonest = min(soonest, seconds)
                else:
                    ref.receiver_stalled(receiver)
        self._refs = [ref for ref in self._refs if ref.source is not None]
        self._next = time.monotonic() + soonest
