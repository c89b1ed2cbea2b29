"""The states of sites on nodes that do not see the run directory, which has them all the same."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from flstream.client.messages import Answered, SiteAnswer, SiteTask, StateOffered
from flstream.client.state import SiteState
from flstream.client.state_archive import pack_state, receive_state
from flstream.client.state_versions import StateFolder
from flstream.errors import (
    AbortedError,
    CheckpointError,
    ClientError,
    StreamingError,
    WorkerLostError,
)
from flstream.model.folder_archive import unpack_folder
from flstream.server.context import ServerContext
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.refs import Ref
from flstream.text import error_text

# What the server's own disk may refuse; all else is the fault of what a worker sends.
_OWN_ERRORS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EACCES", "EPERM", "EMFILE", "ENFILE")
}


class NodeStates:
    """The server's side of the states of a task's sites, whose worker does not see the run.

    Args:
        context: The server.
        worker: The worker.
        effect: Number of the task's effect.
        sites: The sites' parts of the task, by site.
        kept: Whether what the sites leave is kept.
    """

    def __init__(
        self,
        context: ServerContext,
        worker: WorkerHandle,
        effect: int,
        sites: Mapping[str, SiteTask],
        *,
        kept: bool,
    ) -> None:
        self._context = context
        self._worker = worker
        self._effect = effect
        self._sites = sites
        self._kept = kept
        self._offered: dict[str, Ref] = {}

    def offer(self, site: str) -> StateOffered:
        """Offer the state that a site's task begins with; :meth:`close` withdraws it.

        Raises:
            WorkerLostError: The worker has asked for it before.
        """
        if site in self._offered:
            raise WorkerLostError(f"it asked twice for the state of {site}")
        base = self._sites[site].state
        if base is None:
            return StateOffered(b"", f"{site} begins with none")
        folder = StateFolder(str(self._context.run.site(site)))
        flaw = folder.flaw(base)
        if flaw is not None:
            return StateOffered(b"", flaw)
        try:
            archive = pack_state(folder.path_of(base), site)
        except ClientError as error:
            return StateOffered(b"", str(error))
        self._offered[site] = self._context.service.offer(archive, [self._worker.receiver])
        return StateOffered(self._offered[site].token)

    def take(self, answered: Answered) -> None:
        """Keep what sites have left, before anything else is done with their answers.

        Raises:
            WorkerLostError: It did not arrive, or is not what the worker says.
            CheckpointError: It cannot be kept here.
            AbortedError: The run is being stopped.
        """
        left = {each.site: each for each in answered.sites if each.state is not None}
        if left.keys() != answered.states.keys():
            raise WorkerLostError("it did not send the states that its sites have left")
        if left and not self._kept:
            raise WorkerLostError("it sent states of sites after a task that leaves none")
        for site, answer in left.items():
            self._take(answer, answered.states[site])

    def close(self) -> None:
        """Withdraw what is on offer."""
        for ref in self._offered.values():
            ref.abort("the task is over")

    def _take(self, answer: SiteAnswer, token: bytes) -> None:
        site, folder = answer.site, self._context.run.site(answer.site)
        settings = self._context.model_settings
        try:
            state = SiteState(str(folder), self._effect, self._sites[site].state, kept=True)
            with receive_state(self._worker.up, token, settings, folder) as archive:
                state.fill(lambda path: unpack_folder(archive, path))
            state.keep(answer.state)
        except AbortedError:
            raise
        except StreamingError as error:
            raise WorkerLostError(f"the state of {site} did not arrive: {error}") from error
        except ClientError as error:
            raise CheckpointError(str(error)) from error
        except OSError as error:
            if error.errno not in _OWN_ERRORS:
                raise WorkerLostError(
                    f"the state of {site} cannot be unpacked: {error_text(error)}"
                ) from error
            raise CheckpointError(
                f"the state of {site} after effect {self._effect} cannot be kept: "
                f"{error_text(error)}; put that right, and go on with --resume"
            ) from error
