"""States of sites whose workers do not see the run directory, which keeps them all the same."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.client.folder_archive import unpack_folder
from flstream.client.messages import Answered, SiteAnswer, SiteTask, StateOffered
from flstream.client.state import SiteState
from flstream.client.state_archive import pack_state, receive_state
from flstream.client.state_versions import StateFolder, error_text
from flstream.errors import (
    AbortedError,
    CheckpointError,
    ClientError,
    StreamingError,
    WorkerLostError,
)
from flstream.server.context import ServerContext
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.refs import Ref


class TravelledStates:
    """The states of a task's sites, on their ways to a worker and back.

    Args:
        context: The server.
        worker: The worker.
        effect: Number of the task's effect.
        sites: The sites' parts of the task, by site.
    """

    def __init__(
        self,
        context: ServerContext,
        worker: WorkerHandle,
        effect: int,
        sites: Mapping[str, SiteTask],
    ) -> None:
        self._context = context
        self._worker = worker
        self._effect = effect
        self._sites = sites
        self._offered: list[Ref] = []

    def offer(self, site: str) -> StateOffered:
        """Offer the state that a site's task begins with; :meth:`close` withdraws it."""
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
        self._offered.append(self._context.service.offer(archive, [self._worker.receiver]))
        return StateOffered(self._offered[-1].token)

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
        for site, answer in left.items():
            self._take(answer, answered.states[site])

    def close(self) -> None:
        """Withdraw what is on offer."""
        for ref in self._offered:
            ref.abort("the task is over")

    def _take(self, answer: SiteAnswer, token: bytes) -> None:
        site, folder = answer.site, self._context.run.site(answer.site)
        settings = self._context.model_settings
        try:
            state = SiteState(str(folder), self._effect, self._sites[site].state, kept=True)
            with receive_state(self._worker.up, token, settings, folder) as archive:
                state.fill(lambda path: unpack_folder(archive, path))
            found = state.keep()
        except AbortedError:
            raise
        except StreamingError as error:
            raise WorkerLostError(f"the state of {site} did not arrive: {error}") from error
        except (OSError, ClientError) as error:
            flaw = error_text(error) if isinstance(error, OSError) else str(error)
            raise CheckpointError(
                f"the state of {site} after effect {self._effect} cannot be kept: {flaw}; put that "
                "right, and go on with --resume"
            ) from error
        if found != answer.state:
            raise WorkerLostError(f"it sent another state of {site} than it had announced")
