"""Updates on the server's side: where each one lies until it is folded.

An update stays in its worker, which then waits, if every site has a worker of its own. Otherwise it
is fetched at once, into a file or, if it is tiny, into memory, and the worker goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from flstream.aggregation.update import UpdateSource
from flstream.client.messages import SiteAnswer
from flstream.errors import (
    AbortedError,
    FlstreamError,
    LayoutError,
    StreamingError,
    UpdateRefusedError,
)
from flstream.model.body import OnRange, Scratch, Sink, Source
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody, Params
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.telemetry.events import Transfer


class UpdateCollection(NamedTuple):
    """Where updates are on offer, and how they are fetched.

    Attributes:
        worker: The worker that offers them.
        token: Token of their body.
        settings: How it is streamed.
        model: Layout of the model that they were trained from.
    """

    worker: WorkerHandle
    token: bytes
    settings: StreamSettings
    model: Layout


class CollectedUpdate:
    """A site's update, in memory.

    Args:
        answer: What the site answered beside it.
        body: Its bytes.
        cost: Cost of fetching it.

    Attributes:
        answer: What the site answered beside it.
        has_changed: Whether a fold has found that it is not the model that was received.
        is_clipped: Whether the last fold has scaled it down.
    """

    has_changed = False
    is_clipped = False

    def __init__(self, answer: SiteAnswer, body: Source, cost: Transfer) -> None:
        self.answer = answer
        self._cost = cost
        self._body = body

    @property
    def cost(self) -> Transfer:
        """The cost of fetching it so far."""
        return self._cost

    @property
    def update(self) -> UpdateSource:
        """The update as a fold takes it."""
        answer = self.answer
        return UpdateSource(
            answer.site,
            self._open,
            answer.weight,
            answer.params_type,
            answer.partial,
            self._note_change,
            self._note_clip,
        )

    def _note_change(self) -> None:
        self.has_changed = True

    def _note_clip(self, is_clipped: bool) -> None:
        self.is_clipped = is_clipped

    def _open(self) -> Source:
        return self._body

    def release(self, failure: str = "") -> None:
        """Let go of it: it is in a model that is durable, or, for a reason, in none."""


def check_fits(answer: SiteAnswer, layout: Layout, model: Layout) -> None:
    """Refuse an update that is not of the model, before any of its bytes are fetched.

    Raises:
        UpdateRefusedError: it is not; the message names the tensor.
    """
    if answer.partial:
        # What it says of tensors that the model has is looked at when it is folded.
        unknown = [name for name in layout.by_name if name not in model.by_name]
        difference = f"tensor {unknown[0]!r} is not part of the model" if unknown else None
        if difference is None and layout.nbytes > model.nbytes:
            difference = "its tensors are larger"
    else:
        difference = model.difference(layout)
    if difference is not None:
        raise UpdateRefusedError(answer.site, f"does not fit the model: {difference}")


class RemoteUpdate(CollectedUpdate):
    """A site's update that is still in its worker.

    It is fetched each time a walk reads it.
    """

    def __init__(self, answer: SiteAnswer, collection: UpdateCollection) -> None:
        self.answer = answer
        self.collection = collection
        self._worker, self._token, self._settings, self._model = collection
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
            self._settings = replace(self._settings, chunk_size=size)

    def _open(self) -> Source:
        site = self.answer.site
        try:
            remote = RemoteSource(self._worker.up, self._token, self._settings)
            self._remotes.append(remote)
            # What was pushed is on its way once. A second walk has to ask.
            self._settings = replace(self._settings, push=False)
            if self._settings.chunk_size == 0:
                # As the old way does: every update whole, in the server's memory, until all of
                # them have been folded.
                check_fits(self.answer, remote.layout, self._model)
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
                settings = replace(self._settings, push=False)
                self._remotes.append(RemoteSource(self._worker.up, self._token, settings))
            self._remotes[-1].close(failure)


class _Attributed:
    """A remote source whose failures name the site."""

    random_access = False
    lendable = False
    extent = None
    changed = None

    def __init__(self, remote: RemoteSource, site: str) -> None:
        self.layout = remote.layout
        self._remote = remote
        self._site = site

    def deliver(self, sink: Sink, on_range: OnRange | None) -> None:
        """Receive the whole update into a sink."""
        try:
            self._remote.deliver(sink, on_range)
        except AbortedError:
            raise
        except StreamingError as error:
            raise self._refused(error) from error

    def views(self, start: int, stop: int, scratch: Scratch) -> Sequence[memoryview]:
        """Return the next bytes."""
        try:
            return self._remote.views(start, stop, scratch)
        except AbortedError:
            raise
        except StreamingError as error:
            raise self._refused(error) from error

    def _refused(self, error: StreamingError) -> UpdateRefusedError:
        return UpdateRefusedError(self._site, f"could not be fetched: {error}")


def fetch_into_memory(
    answers: Sequence[SiteAnswer], collection: UpdateCollection, asked: int
) -> list[CollectedUpdate]:
    """Fetch the updates of several sites at once.

    Args:
        answers: The sites' answers, in order.
        collection: Where their updates are on offer.
        asked: Number of sites that the worker was asked for; of several, tensors are numbered.

    Raises:
        FlstreamError: They did not arrive.
    """
    worker, token, settings, model = collection

    def sink_for(layout: Layout) -> MemoryBody:
        if asked == 1:
            check_fits(answers[0], layout, model)
        elif layout.nbytes > asked * model.nbytes:
            # Whose it is is found out when each is asked alone.
            raise LayoutError(
                f"the updates of {asked} sites take {layout.nbytes} bytes, which is more than as "
                f"many models of {model.nbytes}"
            )
        return MemoryBody.allocate(layout)

    body, cost = download(worker.up, token, settings, sink_for)
    share = Transfer(cost.bytes // len(answers), 0, 0, 0, cost.seconds / len(answers))
    if asked == 1:
        tensors, ties = [body.tensors], body.layout.aliases
    else:
        tensors, ties = _by_site(body.tensors, len(answers)), model.aliases
    collected = []
    for index, answer in enumerate(answers):
        own = MemoryBody.of(tensors[index], tied=ties)
        first = cost if index == 0 else Transfer()
        counted = share + Transfer(0, first.requests, first.chunks, first.retries)
        collected.append(CollectedUpdate(answer, own, counted))
    return collected


def _by_site(tensors: Params, count: int) -> list[dict[str, Any]]:
    """Tensors that are named ``<index>/<name>``, by that index and under their own names."""
    found: dict[str, dict[str, Any]] = {str(index): {} for index in range(count)}
    for name, tensor in tensors.items():
        index, _, own = name.partition("/")
        if index in found:
            found[index][own] = tensor
    return list(found.values())
