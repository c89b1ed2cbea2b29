"""The sites that a task is for, as the workers take them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

Batch = tuple[str, ...]
"""Sites that a worker deals with in one task, one after another."""


class Batches:
    """Hands out the sites of a cohort to workers, each of which takes more when it is done.

    Threads share it.

    Args:
        cohort: the sites, in the order in which their updates are folded.
        size: how many sites a worker takes at a time.
        ahead: how far beyond the last site that was folded they may be taken, so that what waits
            to be folded stays within bounds; None is as far as there are any.
        own: the worker of each site, where it may not be just any.
        done: sites of the cohort that need no worker any more.
    """

    def __init__(
        self,
        cohort: Sequence[str],
        size: int = 1,
        ahead: int | None = None,
        own: Mapping[str, str] | None = None,
        done: Collection[str] = (),
    ) -> None:
        self._place = {site: place for place, site in enumerate(cohort)}
        todo = [site for site in cohort if site not in done]
        self._waiting: deque[Batch] = deque(
            tuple(todo[start : start + size]) for start in range(0, len(todo), size)
        )
        self._own = own or {}
        self._ahead = ahead
        self._folded = 0
        self._taken: dict[str, Batch] = {}
        self._change = threading.Condition()
        self._closed = False

    @property
    def taken(self) -> Mapping[str, Batch]:
        """What each worker is dealing with."""
        with self._change:
            return dict(self._taken)

    @property
    def is_left(self) -> bool:
        """Whether there are sites that nobody has taken, and that may still be taken."""
        with self._change:
            return bool(self._waiting) and not self._closed

    def take(self, worker: str) -> Batch | None:
        """Take the next sites for a worker, once there are any; None if there will be none."""
        with self._change:
            self._taken.pop(worker, None)
            self._change.notify_all()
            while not self._closed:
                batch = self._next(worker)
                if batch is not None:
                    self._taken[worker] = batch
                    return batch
                # What another worker has taken may come back, if that one dies.
                if not self._waiting and not self._taken:
                    return None
                if self._own and not any(self._own[site] == worker for (site,) in self._waiting):
                    return None
                self._change.wait()
            return None

    def leave(self, worker: str) -> None:
        """A worker takes no more."""
        with self._change:
            self._taken.pop(worker, None)
            self._change.notify_all()

    def give_back(self, sites: Sequence[str]) -> None:
        """Have sites dealt with again, all in one batch, before those that wait."""
        with self._change:
            if sites:
                self._waiting.appendleft(tuple(sites))
            self._change.notify_all()

    def fold(self, count: int) -> None:
        """So many sites, from the first, have been folded or have failed."""
        with self._change:
            self._folded = count
            self._change.notify_all()

    def close(self) -> Sequence[str]:
        """Hand out no more, and say which sites nobody has taken."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            return [site for batch in self._waiting for site in batch]

    def _next(self, worker: str) -> Batch | None:
        for batch in self._waiting:
            if self._own and self._own[batch[0]] != worker:
                continue
            if self._ahead is not None and self._place[batch[-1]] >= self._folded + self._ahead:
                return None
            self._waiting.remove(batch)
            return batch
        return None
