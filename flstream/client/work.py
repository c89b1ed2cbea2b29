"""The work on one task: its sites take turns, and what comes of it is handed in together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from flstream.client.context import SiteContext
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.messages import (
    Began,
    Failed,
    Received,
    Scored,
    ScoredSite,
    SiteTask,
    Task,
    Trained,
    TrainedSite,
)
from flstream.client.seeding import seed_everything
from flstream.client.updates import (
    Bundle,
    copied,
    copies_of,
    framework_of,
    metrics_of,
    params_to_send,
    weight_of,
)
from flstream.client.worker import Worker
from flstream.errors import ClientError, FlstreamError, StreamingError
from flstream.model.body import Source
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params

if TYPE_CHECKING:
    import torch


class Work:
    """The work on one task.

    For each site in turn: ``begin``, then ``receive`` and ``answer``, or ``fail``. In the end,
    ``finish``.

    The model of a single site arrives in the tensors that it trains, and its update is fetched from
    where it lies. Several sites each get a copy of the model, and their updates are copied.

    Args:
        worker: who does it.
        task: what is to be done.

    Attributes:
        task: as given.
        site: whose turn it is, None when it has answered or failed.
    """

    def __init__(self, worker: Worker, task: Task) -> None:
        self.task = task
        self.site: SiteContext | None = None
        self._worker = worker
        self._is_shared = len(task.sites) > 1
        # What the model is like, once it has come. Training may break ties in what it sends.
        self._layout: Layout | None = None
        self._selected: Collection[str] | None = None
        self._was_received = False
        # For several sites: the model as it came, or why it did not.
        self._pristine: MemoryBody | None = None
        self._failure = ""
        self._bundle = Bundle()
        self._trained: list[TrainedSite] = []
        self._scored: list[ScoredSite] = []
        self._is_delivered = False

    def begin(self, site: SiteTask) -> SiteContext | None:
        """It is this site's turn; None if its folder cannot be used, and so it has failed."""
        self._was_received = False
        if self._is_shared:
            self._worker.send(Began(self.task.round, site.site))
        try:
            self._worker.enter(site.site)
            self.site = SiteContext.of(self._worker.info, self.task, site)
        except OSError as error:
            reason = f"its folder in the run directory cannot be used: {error}"
            self._worker.send(Failed(site.site, self.task.round, reason))
        return self.site

    def receive(self, into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None) -> FLModel:
        """The model, for the site whose turn it is, with the global generators seeded.

        Raises:
            ClientError: it was received before, or does not fit ``into``.
            StreamingError: it did not arrive.
        """
        site = self._current()
        if self._was_received:
            raise ClientError(
                f"the model of round {site.round} was received before; answer it with send() first"
            )
        sink_for = self._sink_for(into)
        if not self._is_shared:
            tensors: Params = self._fetch(sink_for).tensors
        elif into is None:
            tensors = copies_of(self._model())
        else:
            tensors = self._copy_into(sink_for)
        self._was_received = True
        seed_everything(site.seed)
        return FLModel(
            params=tensors,
            current_round=self.task.round - 1,
            total_rounds=self.task.total_rounds,
            meta={"site_name": site.name, "task": self.task.kind},
        )

    def answer(self, model: FLModel) -> None:
        """Take what the site answers; a single site's is handed in at once.

        Raises:
            ClientError: it lacks what the task asks for.
            LayoutError: a tensor cannot be streamed; the message names it.
        """
        site = self._current()
        # What the script lets go of after this, the next model will need.
        self._worker.memory.keep()
        metrics, weight = metrics_of(model), weight_of(model)
        update: MemoryBody | None = None
        if self.task.kind == "evaluate":
            site.state.keep()
            has_params = model.params is not None
            self._scored.append(ScoredSite(site.name, weight, metrics, has_params))
        else:
            params, partial = params_to_send(model, site.round, self._layout, self._selected)
            kind, framework = ParamsType(model.params_type), framework_of(params)
            tied = None if self._layout is None else self._layout.aliases
            # What can fail comes first: a site that fails keeps no state, and has no place in the
            # bundle. Nothing that is on offer may rest on a state that could still be lost.
            if self._is_shared:
                pieces = copied(params, tied)
                site.state.keep()
                self._bundle.add(pieces)
            else:
                update = MemoryBody.of(params, tied=tied)
                site.state.keep()
            self._trained.append(
                TrainedSite(site.name, weight, kind.value, framework, metrics, partial)
            )
        self.site = None
        if not self._is_shared:
            self._deliver(update)

    def fail(self, reason: str) -> None:
        """The site whose turn it is has failed; the others go on."""
        site = self._current()
        self.site = None
        self._worker.send(Failed(site.name, site.round, reason))
        with suppress(OSError):  # what cannot be removed now is removed before it trains again
            site.state.discard()

    def finish(self) -> None:
        """All sites have had their turn: hand in what they answered, and wait until it is used."""
        self._worker.enter(None)
        self._pristine = None
        if not self._is_delivered:
            self._deliver(self._bundle.source() if self._trained else None)

    def _deliver(self, update: Source | None) -> None:
        self._is_delivered = True
        if self.task.kind == "evaluate":
            self._worker.send(Scored(self.task.round, self._scored))
            return
        if update is None:
            self._worker.send(Trained(self.task.round, b"", []))
            return
        ref = self._worker.offer(update, self.task.chunk_size)
        self._worker.send(Trained(self.task.round, ref.token, self._trained))
        outcome = ref.wait()
        if not outcome.ok:
            names = ", ".join(trained.site for trained in self._trained)
            print(
                f"flstream: the update of round {self.task.round} was not used "
                f"({names}): {outcome.reason}",
                file=sys.stderr,
                flush=True,
            )

    def _current(self) -> SiteContext:
        if self.site is None:
            raise ClientError("there is no task to answer; call receive() first")
        return self.site

    def _fetch(self, sink_for: Callable[[Layout], MemoryBody]) -> MemoryBody:
        body, cost = self._worker.fetch(self.task.ref, sink_for)
        if self._worker.selection is not None:
            self._selected = self._worker.selection(body.layout)
        self._layout = body.layout
        self._worker.send(Received(self.task.round, cost.retries))
        return body

    def _model(self) -> MemoryBody:
        """The model as it came, of which every site gets a copy."""
        if self._pristine is None and not self._failure:
            try:
                self._pristine = self._fetch(self._sink_for(None))
            except FlstreamError as error:
                self._failure = str(error)
        if self._pristine is None:
            # It is not asked for again for each site: one may have waited minutes for it.
            raise StreamingError(f"the model did not arrive: {self._failure}")
        return self._pristine

    def _copy_into(self, sink_for: Callable[[Layout], MemoryBody]) -> Params:
        model = self._model()
        sink, size = sink_for(model.layout), model.layout.nbytes
        for theirs, ours in zip(sink.views(0, size), model.views(0, size), strict=True):
            theirs[:] = ours
        return sink.tensors

    def _sink_for(
        self, into: torch.nn.Module | Mapping[str, torch.Tensor] | None
    ) -> Callable[[Layout], MemoryBody]:
        if into is None:
            worker = self._worker
            return lambda layout: worker.memory.allocate(layout, worker.info.exchange_format)
        self._worker.memory.release()
        body = MemoryBody.over(into)

        def existing(layout: Layout) -> MemoryBody:
            difference = layout.difference(body.layout)
            if difference:
                raise ClientError(f"the model does not fit what it is received into: {difference}")
            return body

        return existing
