"""Ends of processes that the memory limit of a run explains."""

from __future__ import annotations

import os
from time import monotonic

from flstream.telemetry import MEMORY_GROUP

_RECENT_SECONDS = 5.0


class LimitKills:
    """Kills at the memory limit from now on; there are none without a limit."""

    def __init__(self) -> None:
        self._group = None
        if MEMORY_GROUP in os.environ:
            from flstream.telemetry.memory_limit import present

            self._group = present()
        self.renew()

    def renew(self) -> None:
        """Leave kills so far out."""
        if self._group is not None:
            self._before = self._recent = self._group.counts()
            self._renewed = monotonic()

    def forget_old(self) -> None:
        """Leave kills out that are older than some seconds; to be called all the time."""
        if self._group is not None and monotonic() - self._renewed > _RECENT_SECONDS:
            before = self._recent
            self.renew()
            self._before = before

    def clause(self, remedy: str = "") -> str:
        """Return a clause on a process that was killed at the limit; each kill is told once.

        Args:
            remedy: What may be done instead of raising the limit, as the end of a list.

        Returns:
            The clause, from its comma on; empty where the limit was not the reason.
        """
        from flstream.units import format_bytes

        if self._group is None or not self._group.explains_kill(self._before):
            return ""
        return (
            f", as the processes of the run together reached memory_limit = "
            f"{format_bytes(self._group.limit)}; raise it (flstream validate estimates the need)"
            f"{remedy}"
        )
