"""Updates on the server's side: where each one lies until it is folded.

An update stays in its worker, which then waits, if every site has a worker of its own. Otherwise it
is fetched at once, into a file or, if it is tiny, into memory, and the worker goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from flstream.aggregation.remote_body import RemoteBody
from flstream.aggregation.update import UpdateSource
from flstream.codecs.update_form import UpdateForm
from flstream.errors import LayoutError, StreamingError, UpdateRefusedError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.model.source import Source
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.download import RemoteSource, download
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import Transfer
from flstream.worker.messages import SiteAnswer


class UpdateCollection(NamedTuple):
    """Where updates are on offer, and how they are fetched.

    Attributes:
        worker: The worker that offers them.
        token: Token of their body.
        settings: How it is streamed.
        form: The model that they were trained from, and how they are encoded.
    """

    worker: WorkerHandle
    token: bytes
    settings: StreamSettings
    form: UpdateForm

    def base_of(self, answer: SiteAnswer) -> Source | None:
        """Return the model if an update may have some of its bytes; None if it has differences."""
        return self.form.model if answer.params_type == "FULL" else None


class CollectedUpdate:
    """A site's update, in memory.

    Args:
        answer: What the site answered beside it.
        body: Its bytes, as they were sent.
        cost: Cost of fetching it.
        form: How they were encoded, and what they are an update of.

    Attributes:
        answer: What the site answered beside it.
        body: As given.
        form: As given.
        has_changed: Whether a fold has found that it is not the model that was received.
        is_clipped: Whether the last fold has scaled it down.
        place: Its place among the updates that a fold was given, from 0.
        base: The model that it was trained from, where that is not the one it is folded into.
    """

    has_changed = False
    is_clipped = False
    place = 0
    base: Source | None = None

    def __init__(self, answer: SiteAnswer, body: Source, cost: Transfer, form: UpdateForm) -> None:
        self.answer = answer
        self.body = body
        self.form = form
        self._cost = cost

    @property
    def cost(self) -> Transfer:
        """The cost of fetching it so far."""
        return self._cost

    @property
    def is_buffered(self) -> bool:
        """Whether a frame of it is kept while it is read, since it is decoded or fetched."""
        return self.form.codec is not None

    def source(self, step: int) -> UpdateSource:
        """The update as a fold takes it.

        Args:
            step: Bytes that are read at a time.
        """
        answer = self.answer
        return UpdateSource(
            answer.site,
            lambda: self.form.decoded(self._open(step), answer.params_type),
            answer.weight,
            answer.params_type,
            answer.partial,
            self._note_change,
            self._note_clip,
            self.confirm,
            self.place,
            self.base,
        )

    def confirm(self) -> None:
        """Make sure that what was read of it is what the site has sent.

        Raises:
            UpdateRefusedError: It was changed meanwhile, or its worker is gone.
        """

    def _note_change(self) -> None:
        self.has_changed = True

    def _note_clip(self, is_clipped: bool) -> None:
        self.is_clipped = is_clipped

    def _open(self, step: int) -> Source:
        return self.body

    def release(self, failure: str = "") -> None:
        """Let go of it: it is in a model that is durable, or, for a reason, in none."""


def check_fits(answer: SiteAnswer, layout: Layout, form: UpdateForm) -> None:
    """Refuse an update that is not of the model, before any of its bytes are fetched.

    Raises:
        UpdateRefusedError: It is not; the message names the tensor.
    """
    difference = form.difference(layout, partial=answer.partial)
    if difference is not None:
        raise UpdateRefusedError(answer.site, f"does not fit the model: {difference}")


class RemoteUpdate(CollectedUpdate):
    """A site's update that is still in its worker.

    It is fetched each time a walk reads it.
    """

    def __init__(self, answer: SiteAnswer, collection: UpdateCollection) -> None:
        self.answer = answer
        self.collection = collection
        worker, token, settings, form = collection
        self.form = form

        def check(layout: Layout) -> None:
            check_fits(answer, layout, form)

        same = collection.base_of(answer)
        decoder = form.decoder_for
        self._remote = RemoteBody(answer.site, worker.up, token, settings, same, check, decoder)

    @property
    def cost(self) -> Transfer:
        """Of fetching it so far."""
        return self._remote.cost

    @property
    def is_buffered(self) -> bool:
        """Whether a frame of it is kept, as that is fetched."""
        return True

    def _open(self, step: int) -> Source:
        return self._remote.open(step)

    def confirm(self) -> None:
        """Have the worker say so."""
        self._remote.confirm()

    def release(self, failure: str = "") -> None:
        """Let the worker go on."""
        # One that has died since is noticed when it is asked again.
        with suppress(StreamingError):
            self._remote.close(failure)


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
    worker, token, settings, form = collection
    model = form.model.layout

    def sink_for(layout: Layout) -> MemoryBody:
        if asked == 1:
            check_fits(answers[0], layout, form)
        elif layout.nbytes > asked * model.nbytes:
            # Whose it is is found out when each is asked alone.
            raise LayoutError(
                f"the updates of {asked} sites take {layout.nbytes} bytes, which is more than as "
                f"many models of {model.nbytes}"
            )
        return MemoryBody.allocate(layout)

    remote = RemoteSource(worker.up, token, settings, decoder_for=form.decoder_for)
    body = download(remote, sink_for)
    cost = remote.cost
    share = Transfer(
        cost.bytes // len(answers),
        seconds=cost.seconds / len(answers),
        encoded=cost.encoded // len(answers),
        with_base=cost.with_base // len(answers),
        direct=cost.direct // len(answers),
    )
    if asked == 1:
        tensors, ties = [body.tensors], body.layout.aliases
    else:
        tensors, ties = _by_site(body.tensors, len(answers)), model.aliases
    collected = []
    for index, answer in enumerate(answers):
        own = MemoryBody.of(tensors[index], tied=ties)
        first = cost if index == 0 else Transfer()
        counted = share + Transfer(0, first.requests, first.chunks, first.retries)
        collected.append(CollectedUpdate(answer, own, counted, form))
    return collected


def _by_site(tensors: Params, count: int) -> list[dict[str, Any]]:
    """Tensors that are named ``<index>/<name>``, by that index and under their own names."""
    found: dict[str, dict[str, Any]] = {str(index): {} for index in range(count)}
    for name, tensor in tensors.items():
        index, _, own = name.partition("/")
        if index in found:
            found[index][own] = tensor
    return list(found.values())
