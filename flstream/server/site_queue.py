"""Queue of the sites of a task, from which workers take batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container, Mapping, Sequence

SiteBatch = tuple[str, ...]
"""Sites that a worker handles in one task, one after another."""


class SiteQueue:
    """Queue of a cohort's sites; each worker takes a batch when it is done with the one before.

    It is safe to use from several threads.

    Args:
        cohort: Sites, in the order in which their updates are folded.
        size: Number of sites in a batch.
        ahead: Most sites beyond the last folded one that may be taken, which bounds the number of
            updates that wait; None for no bound.
        own: Whether each site has a worker of its own, which has its name.
        is_open: Whether more sites may come, so that workers wait for them.
        absent: Sites of the cohort that no worker is to have.
    """

    def __init__(
        self,
        cohort: Sequence[str],
        size: int = 1,
        ahead: int | None = None,
        *,
        own: bool = False,
        is_open: bool = False,
        absent: Container[str] = (),
    ) -> None:
        self._place = {site: place for place, site in enumerate(cohort)}
        cohort = [site for site in cohort if site not in absent]
        self._waiting: deque[SiteBatch] = deque(
            tuple(cohort[start : start + size]) for start in range(0, len(cohort), size)
        )
        self._own = own
        self._ahead = ahead
        self._folded = 0
        self._taken: dict[str, SiteBatch] = {}
        self._begun: set[str] = set()
        self._change = threading.Condition()
        self._closed = False
        self._is_open = is_open

    @property
    def taken(self) -> Mapping[str, SiteBatch]:
        """Batches that are being handled, by worker; not those that wait for theirs."""
        with self._change:
            return {worker: self._taken[worker] for worker in self._begun}

    @property
    def is_left(self) -> bool:
        """Whether there are sites that may still be taken."""
        with self._change:
            return bool(self._waiting) and not self._closed

    def take(self, worker: str) -> SiteBatch | None:
        """Take the next batch for a worker, and wait until there is one.

        Returns:
            The batch; None if there will be no more for this worker.
        """
        with self._change:
            self._put_down(worker)
            while not self._closed:
                batch = self._next(worker)
                if batch is not None:
                    self._taken[worker] = batch
                    return batch
                # A batch that another worker has taken comes back if that worker is lost.
                is_over = not self._waiting and not self._taken
                if not self._is_open and (is_over or self._is_for_others(worker)):
                    return None
                self._change.wait()
            return None

    def put(self, sites: SiteBatch) -> None:
        """Add sites at the end, which one worker takes together, where the queue is open."""
        with self._change:
            self._waiting.append(sites)
            self._change.notify_all()

    def begin(self, worker: str) -> bool:
        """Whether a worker is to handle the batch that it took, now that nothing else keeps it."""
        with self._change:
            if not self._closed:
                self._begun.add(worker)
            return not self._closed

    def leave(self, worker: str) -> None:
        """Record that a worker takes no more batches."""
        with self._change:
            self._put_down(worker)

    def give_back(self, sites: Sequence[str]) -> None:
        """Put sites back at the head of the queue, as one batch."""
        with self._change:
            if sites:
                self._waiting.appendleft(tuple(sites))
            self._change.notify_all()

    def fold(self, count: int) -> None:
        """Record that the first ``count`` sites of the cohort have been folded or have failed."""
        with self._change:
            self._folded = count
            self._change.notify_all()

    def close(self) -> Sequence[str]:
        """Close the queue, and return the sites that no worker has taken."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            return [site for batch in self._waiting for site in batch]

    def _put_down(self, worker: str) -> None:
        self._taken.pop(worker, None)
        self._begun.discard(worker)
        self._change.notify_all()

    def _is_for_others(self, worker: str) -> bool:
        """Whether all sites that wait have workers of their own, none of which is this one."""
        return self._own and all(site != worker for (site,) in self._waiting)

    def _next(self, worker: str) -> SiteBatch | None:
        for batch in self._waiting:
            if self._own and batch[0] != worker:
                continue
            if self._ahead is not None and self._place[batch[-1]] >= self._folded + self._ahead:
                return None
            self._waiting.remove(batch)
            return batch
        return None
