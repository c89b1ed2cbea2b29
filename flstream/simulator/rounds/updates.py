"""Updates on the server's side: where each one lies until it is folded.

An update stays in its worker, which then waits, if every site has a worker of its own. Otherwise it
is fetched at once, into a file or, if it is tiny, into memory, and the worker goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from flstream.aggregation.updates import Update
from flstream.client.messages import Trained, TrainedSite
from flstream.errors import (
    AbortedError,
    FlstreamError,
    LayoutError,
    StreamingError,
    UpdateRefusedError,
)
from flstream.model.body import Scratch, Source
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.simulator.crew.worker import Worker
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.telemetry.events import Transfer


class Collected:
    """A site's update, in memory.

    Attributes:
        trained: what the site said of it.
    """

    def __init__(self, trained: TrainedSite, body: Source, cost: Transfer) -> None:
        self.trained = trained
        self._cost = cost
        self._body = body

    @property
    def cost(self) -> Transfer:
        """Of fetching it so far."""
        return self._cost

    @property
    def update(self) -> Update:
        """For the fold."""
        told = self.trained
        return Update(told.site, self._open, told.weight, told.params_type, told.partial)

    def _open(self) -> Source:
        return self._body

    def release(self, failure: str = "") -> None:
        """Let go of it: it is in a model that is durable, or, for a reason, in none."""


def check_fits(trained: TrainedSite, layout: Layout, model: Layout) -> None:
    """Refuse an update that is not of the model, before any of its bytes are fetched.

    Raises:
        UpdateRefusedError: it is not; the message names the tensor.
    """
    if trained.partial:
        # What it says of tensors that the model has is looked at when it is folded.
        unknown = [name for name in layout.by_name if name not in model.by_name]
        difference = f"tensor {unknown[0]!r} is not part of the model" if unknown else None
        if difference is None and layout.nbytes > model.nbytes:
            difference = "its tensors are larger"
    else:
        difference = model.difference(layout)
    if difference is not None:
        raise UpdateRefusedError(trained.site, f"does not fit the model: {difference}")


class Held(Collected):
    """A site's update that is still in its worker.

    It is fetched each time a walk reads it.
    """

    def __init__(
        self,
        trained: TrainedSite,
        worker: Worker,
        token: bytes,
        settings: StreamSettings,
        model: Layout,
    ) -> None:
        self.trained = trained
        self._model = model
        self._worker = worker
        self._token = token
        self._settings = settings
        self._remotes: list[RemoteSource] = []

    @property
    def cost(self) -> Transfer:
        """Of fetching it so far."""
        return sum((remote.cost for remote in self._remotes), start=Transfer())

    @property
    def frame_size(self) -> int:
        """Bytes of the longest frame in which it may be fetched; 0 is the whole of it at once."""
        return self._settings.frame_size

    def fetch_in_frames(self, size: int) -> None:
        """Fetch it in frames of at most so many bytes, unless it comes whole."""
        if self._settings.chunk_size:
            self._settings = self._settings._replace(chunk_size=size)

    def _open(self) -> Source:
        site = self.trained.site
        try:
            remote = RemoteSource(self._worker.up, self._token, self._settings)
            self._remotes.append(remote)
            # What was pushed is on its way once. A second walk has to ask.
            self._settings = self._settings._replace(push=False)
            if self._settings.chunk_size == 0:
                # As the old way does: every update whole, in the server's memory, until all of
                # them have been folded.
                check_fits(self.trained, remote.layout, self._model)
                return BufferSource(remote.layout, remote.receive_whole())
        except (AbortedError, UpdateRefusedError):
            raise
        except FlstreamError as error:
            raise UpdateRefusedError(site, f"could not be fetched: {error}") from error
        return _Attributed(remote, site)

    def release(self, failure: str = "") -> None:
        """Let the worker go on."""
        # One that has died since is noticed when it is asked again.
        with suppress(StreamingError):
            if not self._remotes:
                settings = self._settings._replace(push=False)
                self._remotes.append(RemoteSource(self._worker.up, self._token, settings))
            self._remotes[-1].close(failure)


class _Attributed:
    """A remote source whose failures name the site."""

    def __init__(self, remote: RemoteSource, site: str) -> None:
        self.layout = remote.layout
        self._remote = remote
        self._site = site

    def views(self, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
        """The next bytes."""
        try:
            return self._remote.views(start, stop, scratch)
        except AbortedError:
            raise
        except StreamingError as error:
            raise UpdateRefusedError(self._site, f"could not be fetched: {error}") from error


def fetch_into_memory(
    worker: Worker, answer: Trained, settings: StreamSettings, model: Layout, asked: int
) -> list[Collected]:
    """Fetch the updates of several sites at once.

    Args:
        worker: where they are.
        answer: whose, in order.
        settings: how.
        model: layout of the global model.
        asked: how many sites the worker was asked for: of more than one, tensors are numbered.

    Raises:
        FlstreamError: they did not arrive.
    """

    def sink_for(layout: Layout) -> MemoryBody:
        if asked == 1:
            check_fits(answer.sites[0], layout, model)
        elif layout.nbytes > asked * model.nbytes:
            # Whose it is is found out when each is asked alone.
            raise LayoutError(
                f"the updates of {asked} sites take {layout.nbytes} bytes, which is more than as "
                f"many models of {model.nbytes}"
            )
        return MemoryBody.allocate(layout)

    body, cost = download(worker.up, answer.ref, settings, sink_for)
    share = Transfer(cost.bytes // len(answer.sites), 0, 0, 0, cost.seconds / len(answer.sites))
    collected = []
    for index, trained in enumerate(answer.sites):
        prefix = f"{index}/" if asked > 1 else ""
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in body.tensors.items()
            if name.startswith(prefix)
        }
        own = MemoryBody.of(tensors, tied=model.aliases if prefix else body.layout.aliases)
        first = cost if index == 0 else Transfer()
        counted = share + Transfer(0, first.requests, first.chunks, first.retries)
        collected.append(Collected(trained, own, counted))
    return collected
