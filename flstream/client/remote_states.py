"""The states of sites where the run directory is on another machine: they travel with tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from flstream.client.context import SiteContext
from flstream.client.state import FetchState
from flstream.client.state_archive import pack_state
from flstream.client.state_versions import StateFolder, StateVersion
from flstream.client.worker import Worker
from flstream.model.checkpoint import FileSource


class RemoteStates:
    """A worker's side of the states of a task's sites, which the server keeps.

    Where the worker sees the run directory, they are there, and nothing travels. Elsewhere a
    version comes only if training code asks for it and the node does not have it, and each version
    that is left goes to the server, which keeps it: the site's next task may be on another node.

    Args:
        worker: The worker that does the task.
        effect: Number of the task's effect.
    """

    def __init__(self, worker: Worker, effect: int) -> None:
        self._worker = worker
        self._effect = effect
        self._left: dict[str, FileSource] = {}

    def fetch(self, site: str) -> FetchState | None:
        """Return how the version comes here that a site begins with; None where it is here."""
        if self._worker.info.sees_run:
            return None
        return partial(self._worker.fetch_state, self._effect, site)

    def keep(self, site: SiteContext) -> StateVersion | None:
        """Keep what a site leaves in its state, and have it at hand for the server.

        Raises:
            ClientError: It cannot be kept, or is too large to travel.
        """
        version = site.state.keep()
        if version is not None and not self._worker.info.sees_run:
            path = StateFolder(site.folder).path_of(version)
            self._left[site.name] = pack_state(path, site.name)
        return version

    @contextmanager
    def offered(self) -> Iterator[Mapping[str, bytes]]:
        """Offer what sites have left, and wait at the end until the server has it.

        Yields:
            The token of each site's, by site.
        """
        refs = {site: self._worker.offer_state(left) for site, left in self._left.items()}
        yield {site: ref.token for site, ref in refs.items()}
        for ref in refs.values():
            ref.wait()
