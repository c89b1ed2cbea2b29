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
from flstream.client.messages import SiteAnswer
from flstream.codecs.update_form import UpdateForm
from flstream.errors import LayoutError, StreamingError, UpdateRefusedError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.model.source import Source
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.download import AtHand, download
from flstream.streaming.receiver import StreamSettings
from flstream.telemetry.events import Transfer


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
    """

    has_changed = False
    is_clipped = False

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
    def reads_ahead(self) -> bool:
        """Whether reading it keeps bytes beyond a range: of a partial one, or one to be decoded."""
        return self.answer.partial or self.form.codec is not None

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
        return self._decoded(self.body)

    def _decoded(self, sent: Source) -> Source:
        answer = self.answer
        return self.form.decoded(answer.site, sent, answer.params_type, self.frame_size)

    @property
    def frame_size(self) -> int:
        """Bytes of the longest frame in which it is fetched; 0 where it is not, or comes whole."""
        return 0

    def fetch_in_frames(self, size: int) -> None:
        """Fetch it in frames of at most so many bytes, if it is fetched in frames."""

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
    def frame_size(self) -> int:
        """Bytes of the longest frame in which it may be fetched; 0 is the whole of it at once."""
        return self._remote.frame_size

    def fetch_in_frames(self, size: int) -> None:
        """Fetch it in frames of at most so many bytes, unless it comes whole."""
        self._remote.fetch_in_frames(size)

    def _open(self) -> Source:
        return self._decoded(self._remote.open())

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

    at_hand = AtHand[MemoryBody](lambda _: None, decoder_for=form.decoder_for)
    body, cost = download(worker.up, token, settings, sink_for, at_hand=at_hand)
    share = Transfer(
        cost.bytes // len(answers),
        seconds=cost.seconds / len(answers),
        encoded=cost.encoded // len(answers),
        with_base=cost.with_base // len(answers),
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
