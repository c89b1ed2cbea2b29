"""Execution of one task in a worker: site by site, with the answers sent together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.client.answers import (
    Bundle,
    check_kinds,
    copied,
    framework_of,
    metrics_of,
    params_to_send,
    read_pieces,
    weight_of,
)
from flstream.client.context import SiteContext
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.messages import (
    MODEL,
    Answered,
    Began,
    Failed,
    Received,
    SiteAnswer,
    SiteTask,
    Task,
)
from flstream.client.meta import pack_meta, unpack_meta
from flstream.client.seeding import seed_everything
from flstream.client.site_filters import SiteFilters
from flstream.client.worker import Worker
from flstream.errors import ClientError, FlstreamError, StreamingError
from flstream.model.body import Source
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.model.order import in_order
from flstream.model.unnamed_file import UnnamedFile
from flstream.streaming.download import SinkT

if TYPE_CHECKING:
    import torch

    Into = torch.nn.Module | Mapping[str, torch.Tensor]
    Place = Callable[[Layout], Mapping[str, torch.Tensor] | None]

SinkFor = Callable[[Layout, Layout], MemoryBody]
"""Function from the layout of a model, and that of the part that code receives, to the sink."""


def received_model(task: Task, site: str, tensors: Params) -> FLModel:
    """Return the model of a task as training code receives it.

    Args:
        task: The task.
        site: Name of the site.
        tensors: The received tensors by name.
    """
    sent = unpack_meta(task.meta)
    return FLModel(
        params=tensors,
        optimizer_params=sent.optimizer_params,
        current_round=task.round - 1,
        total_rounds=task.total_rounds,
        meta={**sent.meta, "site_name": site, "task": task.kind},
    )


class TaskExecution:
    """Execution of one task.

    The order of calls is ``begin``, then ``receive`` and ``answer``, or ``fail``, for each site in
    turn, and ``finish`` at the end.

    In a task for a single site, the model is received into the tensors that are trained, and the
    update is fetched from where it lies. In a task for several sites, each site gets a copy of the
    model, and the updates are copied. So it does in a task for a single site where filters need the
    model as it was received.

    Args:
        worker: The worker that executes the task.
        task: The task.

    Attributes:
        task: The task.
        site: The current site; None once it has answered or failed.
    """

    def __init__(self, worker: Worker, task: Task) -> None:
        self.task = task
        self.site: SiteContext | None = None
        self._worker = worker
        self._is_shared = len(task.sites) > 1
        # Of the received model: training may break the ties between the tensors that it sends.
        self._layout: Layout | None = None
        self._selected: Collection[str] | None = None
        self._was_received = False
        info = worker.info
        folder = Path(info.sites_folder)
        self._filters = SiteFilters(info.filters_up, info.filters_down, folder)
        # Names of tensors that the site's code does not receive.
        self._held_back: Collection[str] = ()
        # The received model, of which code gets a copy, or the reason why it did not arrive.
        self._keeps_model = self._is_shared or self._filters.keep_model(task.kind)
        self._kept_model: MemoryBody | UnnamedFile | None = None
        self._failure = ""
        self._bundle = Bundle()
        self._answers: list[SiteAnswer] = []
        self._is_delivered = False

    @property
    def is_repeated(self) -> bool:
        """Whether the task was done before, and is repeated for the sake of its updates alone."""
        return self.task.kind == "train" and not self.task.keeps_state

    def begin(self, site: SiteTask) -> SiteContext | None:
        """Begin a site's part of the task.

        Args:
            site: The site's part.

        Returns:
            The site's context; None if its folder cannot be used, which has failed the site.
        """
        self._was_received = False
        if self._is_shared:
            self._worker.send(Began(self.task.effect, site.site))
        try:
            self._worker.enter(site.site)
            self.site = SiteContext.of(self._worker.info, self.task, site)
        except OSError as error:
            reason = f"its folder in the run directory cannot be used: {error}"
            self._worker.send(Failed(site.site, self.task.effect, reason))
        return self.site

    def receive(self, into: Into | None = None, place: Place | None = None) -> FLModel:
        """Return the model for the current site, and seed the global random generators.

        Args:
            into: Module or state dict that receives the tensors in place; None to allocate memory.
            place: Function that returns the tensors to receive into, given the model's layout, or
                None to allocate memory; in the place of ``into``.

        Raises:
            ClientError: It was received before, or does not fit ``into``.
            StreamingError: It did not arrive.
        """
        site = self._current()
        if self._was_received:
            raise ClientError(
                f"the model of round {site.round} was received before; answer it with send() first"
            )
        if into is not None:
            tensors = self._received_into(self._existing(into))
        elif place is not None:
            tensors = self._received_into(self._placed(place))
        else:
            tensors = self._received_into(self._new)
        if into is None and self._layout is not None:
            tensors = in_order(tensors, self._layout, self.task.order)
        self._was_received = True
        seed_everything(site.seed)
        return received_model(self.task, site.name, tensors)

    def answer(self, model: FLModel) -> None:
        """Take the current site's answer; in a task for a single site, send it at once.

        Args:
            model: The answer.

        Raises:
            ClientError: The answer lacks what the task asks for.
            LayoutError: A tensor cannot be streamed; the message names it.
        """
        site = self._current()
        # Memory that the script frees from here on is kept for the next model.
        self._worker.memory.keep()
        metrics, weight, meta = metrics_of(model), weight_of(model), pack_meta(model)
        has_params = model.params is not None
        update: Source | None = None
        if self.task.kind == "evaluate":
            site.state.keep()
            answer = SiteAnswer(site.name, weight, metrics, has_params=has_params, meta=meta)
        else:
            params, partial = params_to_send(
                model, site.round, self._layout, self._selected, self._held_back
            )
            kind, framework = ParamsType(model.params_type), framework_of(params)
            tied = None if self._layout is None else self._layout.aliases
            # The steps that can fail come first: a failed site keeps no state, and is not in the
            # bundle. An update is offered only once the state that belongs to it is durable.
            if self._is_shared and not self._filters.up:
                pieces = copied(params, tied)
                check_kinds((piece[:3] for piece in pieces), self._layout)
            else:
                whole = MemoryBody.of(params, tied=tied)
                check_kinds((spec[:3] for spec in whole.layout.tensors), self._layout)
                update = self._filters.sent(whole, self._kept_model, model, site)
                partial = partial or len(update.layout.tensors) < len(whole.layout.tensors)
                pieces = read_pieces(update) if self._is_shared else []
            state = site.state.keep()
            if self._is_shared:
                self._bundle.add(pieces)
            answer = SiteAnswer(
                site.name, weight, metrics, kind.value, framework, partial, True, state, meta
            )
        self._answers.append(answer)
        self.site = None
        if not self._is_shared:
            self._deliver(update)

    def fail(self, reason: str) -> None:
        """Fail the current site; the others go on.

        Args:
            reason: Clause that says why it failed.
        """
        site = self._current()
        self.site = None
        self._worker.send(Failed(site.name, self.task.effect, reason))
        with suppress(OSError):  # leftovers are removed before the site trains again
            site.state.discard()

    def finish(self) -> None:
        """Send the answers of all sites, and wait until the server has used their updates."""
        self._worker.enter(None)
        self._kept_model = None
        if not self._is_delivered:
            has_bodies = self.task.kind == "train" and bool(self._answers)
            self._deliver(self._bundle.source() if has_bodies else None)

    def _deliver(self, update: Source | None) -> None:
        self._is_delivered = True
        effect = self.task.effect
        if update is None:
            self._worker.send(Answered(effect, {}, self._answers))
            return
        ref = self._worker.offer(update, self.task.chunk_size)
        self._worker.send(Answered(effect, {MODEL: ref.token}, self._answers))
        outcome = ref.wait()
        if not outcome.ok:
            names = ", ".join(answer.site for answer in self._answers)
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

    def _fetch(self, sink_for: Callable[[Layout], SinkT]) -> SinkT:
        body, cost = self._worker.fetch(self.task.bodies[MODEL], sink_for)
        if self._worker.selection is not None:
            self._selected = self._worker.selection(body.layout)
        self._filters.check(body.layout)
        self._layout = body.layout
        self._worker.send(Received(self.task.effect, cost.retries))
        return body

    def _model(self) -> MemoryBody | UnnamedFile:
        """Return the received model, of which code gets a copy."""
        if self._kept_model is None and not self._failure:
            try:
                if self._is_shared:
                    self._kept_model = self._fetch(lambda layout: self._new(layout, layout))
                else:
                    self._kept_model = self._fetch(self._filters.place)
            except FlstreamError as error:
                self._failure = str(error)
        if self._kept_model is None:
            # Not requested again for each site: each attempt may take minutes to fail.
            raise StreamingError(f"the model did not arrive: {self._failure}")
        return self._kept_model

    def _received_into(self, sink_for: SinkFor) -> Params:
        if not self._keeps_model:
            return self._fetch(lambda layout: sink_for(layout, layout)).tensors
        model = self._model()
        seen = self._filters.received(model, self._current())
        self._held_back = model.layout.by_name.keys() - seen.layout.by_name.keys()
        sink = sink_for(model.layout, seen.layout)
        copy(seen, sink)
        return sink.tensors

    def _new(self, layout: Layout, part: Layout) -> MemoryBody:
        return self._worker.memory.allocate(part, self._worker.info.exchange_format)

    def _existing(self, into: Into) -> SinkFor:
        self._worker.memory.release()
        body = MemoryBody.over(into)

        def existing(layout: Layout, part: Layout) -> MemoryBody:
            difference = layout.difference(body.layout)
            if difference:
                raise ClientError(f"the model does not fit what it is received into: {difference}")
            return body if part == layout else body.part(part)

        return existing

    def _placed(self, place: Place) -> SinkFor:
        def placed(layout: Layout, part: Layout) -> MemoryBody:
            into = place(layout)
            return self._new(layout, part) if into is None else self._existing(into)(layout, part)

        return placed
