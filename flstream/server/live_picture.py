"""The picture of a run for its live view, emitted as snapshots now and then."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from flstream.telemetry.events import Snapshot, WorkerActivity

MOST_WORKERS = 32
"""Most workers whose activity a snapshot has."""

_SECONDS = 0.1  # least time between two snapshots
_RATE_SECONDS, _LEAST_SECONDS = 2.0, 0.5  # over which rates are


class LivePicture:
    """The picture of a run at this moment: counting costs little, and a snapshot is rare."""

    def __init__(self, emit: Callable[[Snapshot], None]) -> None:
        self._emit = emit
        self._now = Snapshot()
        self._workers: Callable[[], Iterable[WorkerActivity]] = tuple
        self._totals: deque[tuple[float, tuple[int, int, int]]] = deque()
        self._fold_began = self._next = 0.0

    def begin(
        self,
        phase: str,
        round_number: int,
        asked: int,
        workers: Callable[[], Iterable[WorkerActivity]],
    ) -> None:
        """Begin a task."""
        now = self._now
        now.phase, now.round, now.asked = phase, round_number, asked
        now.done = now.failed = now.folded = 0
        self._workers = workers

    def arrived(self, nbytes: int) -> None:
        """Count bytes of a model that has arrived at a worker."""
        self._now.down += nbytes

    def answered(self, fetched: int) -> None:
        """Count the answer of a site, and the bytes of its update that were fetched."""
        self._now.up += fetched
        self._now.done += 1
        self._now.answers += 1

    def failed(self) -> None:
        """Count the failure of a site."""
        self._now.failed += 1

    def fold(self, folded: int, size: int, sites: Sequence[str]) -> None:
        """Show how far a walk over updates is."""
        now = self._now
        if now.done + now.failed < now.asked:
            return  # updates are added to a sum as they come: the other sites are at work
        now.up += max(folded - now.folded, 0) * len(sites)
        now.folded = folded
        if now.phase != "folding":
            now.phase, self._fold_began = "folding", time.time()
        is_done = folded >= size
        if is_done:
            now.phase = "writing the checkpoint"
        state: Literal["ready", "uploading"] = "ready" if is_done else "uploading"
        began, shown = self._fold_began, sites[:MOST_WORKERS]
        self._workers = lambda: [WorkerActivity(site, state, began, moved=folded) for site in shown]
        self.emit_snapshot(at_once=is_done)

    def emit_snapshot(self, *, at_once: bool = False) -> None:
        """Emit a snapshot, if the last one is old enough."""
        seconds = time.monotonic()
        if seconds < self._next and not at_once:
            return
        self._next = seconds + _SECONDS
        now, workers = self._now, list(self._workers())
        loading = [work for work in workers if work.state == "downloading"]
        is_loading = loading and len(loading) == len(workers) and not now.done
        sent = sum(work.moved for work in loading)
        over = sum(work.over for work in workers)
        totals = now.down + sent, now.up, now.answers + over
        shown = heapq.nsmallest(MOST_WORKERS, workers, key=_urgency)
        self._emit(
            Snapshot(
                round=now.round,
                phase="downloading" if is_loading else now.phase,
                asked=now.asked,
                done=min(now.done + over, max(now.asked - now.failed, 0)),
                failed=now.failed,
                answers=totals[2],
                down=totals[0],
                up=totals[1],
                rates=self._rates(seconds, totals),
                folded=now.folded,
                workers=shown if len(workers) > MOST_WORKERS else workers,
            )
        )

    def _rates(self, now: float, totals: tuple[int, int, int]) -> tuple[float, float, float]:
        self._totals.append((now, totals))
        while self._totals[0][0] < now - _RATE_SECONDS:
            self._totals.popleft()
        begin, before = self._totals[0]
        seconds = max(now - begin, _LEAST_SECONDS)
        down, up, answers = (b - a for a, b in zip(before, totals, strict=True))
        return max(down, 0) / seconds, up / seconds, max(answers, 0) / seconds


def _urgency(work: WorkerActivity) -> tuple[bool, float]:
    return work.state == "ready", work.since
