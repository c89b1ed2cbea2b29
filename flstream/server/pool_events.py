"""Events of the worker pool, and the interface through which tasks report them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from flstream.server.site_queue import SiteBatch
from flstream.server.worker_handle import WorkerHandle


class SiteLost(NamedTuple):
    """A site's failure in a task.

    Attributes:
        site: Name of the site.
        reason: Clause that says why it failed.
    """

    site: str
    reason: str


class WorkerAbandoned(NamedTuple):
    """A shared worker that is no longer replaced; the other workers do its work.

    Attributes:
        worker: Name of the worker.
        reason: Clause that says why.
    """

    worker: str
    reason: str


PoolEvent = object
"""A worker's message, the loss of a worker or of a site, or a task's result."""


class Report(Protocol):
    """Function that passes an event to the thread that iterates over the pool's events."""

    def __call__(self, event: PoolEvent, *settled: str) -> None:
        """Report an event.

        Args:
            event: The event.
            settled: Sites whose part in the task it settles.
        """
        ...


Perform = Callable[[WorkerHandle, SiteBatch, Report], None]
"""Function that executes a task for a batch of sites on a worker, and reports each site's result.

It raises a :class:`~flstream.errors.FlstreamError` if the worker cannot be used any longer."""
