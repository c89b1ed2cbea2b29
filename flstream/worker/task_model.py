"""The model of a task, as it arrives at a worker: once, for one site or for several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flstream.client.fl_model import FLModel
from flstream.errors import ClientError, FlstreamError, StreamingError
from flstream.model.checkpoint import BodyFile
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.mapped import MappedModel
from flstream.model.memory import BufferSource, Framework, MemoryBody, Params
from flstream.model.order import in_order
from flstream.model.source import Source
from flstream.streaming.download import download
from flstream.telemetry.events import Transfer
from flstream.worker.joined_bodies import JoinedBodies
from flstream.worker.messages import MODEL, Task
from flstream.worker.meta import unpack_meta
from flstream.worker.model_form import ModelForm
from flstream.worker.site_filters import SiteFilters
from flstream.worker.site_work import SiteWork
from flstream.worker.watched import WatchedValues
from flstream.worker.worker import KnownModel, Worker

if TYPE_CHECKING:
    from flstream.client.session import Into, Place

# Bytes of the smallest mapped model of which it matters how much is written to.
_LEAST_LOOKED_AT = 16 << 20

BodyT = TypeVar("BodyT", bound=MemoryBody | BodyFile)

SinkFor = Callable[[Layout, Layout], MemoryBody]
"""Function from the layout of a model, and that of the part that code receives, to the sink."""


def received_model(
    task: Task, site: str, tensors: Params, bodies: Mapping[str, Params] | None = None
) -> FLModel:
    """Return the model of a task as training code receives it.

    Args:
        task: The task.
        site: Name of the site.
        tensors: The received tensors by name; none where a model is to be submitted.
        bodies: Those of the bodies that travel with the model, by name of the body.
    """
    sent = unpack_meta(task.meta)
    meta = {**sent.meta, **(bodies or {}), "site_name": site, "task": task.kind}
    optimizer = sent.optimizer_params
    return FLModel(
        params=tensors,
        optimizer_params=None if optimizer is None else WatchedValues(optimizer),
        current_round=task.round - 1,
        total_rounds=task.total_rounds,
        meta=WatchedValues(meta) if sent.meta or bodies else meta,
    )


class TaskModel:
    """The model of a task, with the bodies beside it.

    Args:
        worker: The worker that executes the task.
        task: The task.
        filters: Filters of the worker's sites.

    Attributes:
        task: The task; another one once the peer that offered the model was lost.
        layout: Layout of the model as it was received, since training may break the ties between
            the tensors that it sends; None before.
        joint: The same with the bodies beside it.
        joined: What these are; None before.
        selected: Names of the tensors that are aggregated; None for all.
        held_back: Names of tensors that the current site's code does not receive.
        kept: The received model, of which code gets a copy; None where it gets the model itself.
    """

    def __init__(self, worker: Worker, task: Task, filters: SiteFilters) -> None:
        self.task = task
        self.layout: Layout | None = None
        self.joint: Layout | None = None
        self.joined: JoinedBodies | None = None
        self.selected: Collection[str] | None = None
        self.held_back: Collection[str] = ()
        self.kept: MemoryBody | BodyFile | BufferSource | None = None
        self._mapped: MappedModel | None = None
        self._worker = worker
        self._filters = filters
        self._has_several_sites = len(task.sites) > 1
        # Why it did not arrive.
        self._failure: FlstreamError | None = None

    def receive(
        self, site: SiteWork, into: Into | None, place: Place | None
    ) -> tuple[Params, Mapping[str, Params]]:
        """Return the model's tensors for a site, and those of the bodies beside it by name.

        Args:
            site: The site.
            into: Module or state dict that receives the tensors in place; None to allocate memory.
            place: Function that returns the tensors to receive into, given the model's layout, or
                None to allocate memory; in the place of ``into``.

        Raises:
            ClientError: It does not fit ``into``.
            StreamingError: It did not arrive.
        """
        if self.task.mapped and not self._is_kept:
            tensors = self._received_mapped(into, place)
        else:
            sink_for: SinkFor = self._new
            if into is not None:
                sink_for = self._existing(into)
            elif place is not None:
                sink_for = self._placed(place)
            if self._is_kept:
                tensors = self._copied(sink_for, site)
            else:
                tensors = self._fetch(lambda layout: sink_for(layout, layout)).tensors
        assert self.joined is not None
        tensors, bodies = self.joined.taken_apart(tensors, self._framework)
        if into is None and self.layout is not None:
            tensors = in_order(tensors, self.layout, self.task.order)
        return tensors, bodies

    def _fetch(
        self,
        sink_for: Callable[[Layout], BodyT],
        seen: Callable[[Layout], MemoryBody] | None = None,
    ) -> BodyT:
        """Fetch the model; from another peer if the one that offers it is lost.

        Args:
            sink_for: Function that returns the place for a model of a layout.
            seen: Function that returns where code will see it, if that is another place; memory
                that it has received a model into before has what need not be sent.
        """
        sink_for = _same_for_all_attempts(sink_for)
        while True:
            task = self.task
            try:
                remote, form = self._worker.open(task.bodies, task.host)
                held = partial(self._at_hand, form, seen)
                body: BodyT = download(remote, sink_for, held=held, decode=form.decode)
                break
            except StreamingError:
                if not task.host:
                    raise
                self.task = self._worker.fetch_again(task)
        self._take(body.layout)
        self._worker.received(self.task.effect, remote.cost)
        return body

    def _at_hand(
        self, form: ModelForm, seen: Callable[[Layout], MemoryBody] | None, body: BodyT
    ) -> Source | None:
        """Return what may have some of a model's bytes, in the form in which these come."""
        source = body if body.is_used else self._worker.base.source
        if source is None and seen is not None and (place := seen(body.layout)).is_used:
            source = place
        return form.encoded(source)

    def _map(self) -> MappedModel:
        self._mapped = self._worker.map(self.task.bodies[MODEL])
        self._take(self._mapped.layout)
        cost = Transfer(reused=self._mapped.layout.nbytes)
        self._worker.received(self.task.effect, cost)
        return self._mapped

    def copied_bytes(self) -> int:
        """Return how much of a mapped model training wrote to, and let go of the mapping."""
        mapped, self._mapped = self._mapped, None
        is_small = mapped is None or mapped.layout.nbytes < _LEAST_LOOKED_AT
        return (
            0 if mapped is None or is_small or self.task.kind != "train" else mapped.written_bytes()
        )

    def _take(self, layout: Layout) -> None:
        """Take the layout of the received body, and check filters and selection against it."""
        joined = self._note(layout)
        if self._worker.selection is not None:
            self.selected = self._worker.selection(joined.model)
        self._filters.check(joined.model)

    def _note(self, layout: Layout) -> JoinedBodies:
        """Take the layout of what is received, and find in it the model's."""
        if self.joined is None:
            filters = self._filters
            if self.task.joined and (filters.up or filters.down or filters.is_lossy):
                what = "codecs with a loss" if filters.is_lossy else "filters"
                raise ClientError(
                    f"the workflow sends {self.task.joined[0]!r} beside the model, which {what} "
                    "pass over; leave them out, or take another workflow"
                )
            self.joined = JoinedBodies(self.task.joined, layout)
            self.joint, self.layout = layout, self.joined.model
        return self.joined

    @property
    def _framework(self) -> Framework:
        return self._worker.info.exchange_format

    @property
    def _is_kept(self) -> bool:
        """Whether the received model is kept, and code gets a copy."""
        return self._has_several_sites or self._filters.keep_model(self.task.kind)

    def _arrived(
        self, seen: Callable[[Layout], MemoryBody]
    ) -> MemoryBody | BodyFile | BufferSource:
        """Return the received model, of which code gets a copy.

        Args:
            seen: Function that returns where code will see it.
        """
        if self.kept is None and self._failure is None:
            try:
                if self.task.mapped:
                    self.kept = self._map().source()
                elif self._has_several_sites:
                    self.kept = self._fetch(self._unseen)
                else:
                    # What filters leave of a model is none of its bytes.
                    self.kept = self._fetch(
                        self._filters.place, None if self._filters.down else seen
                    )
            except FlstreamError as error:
                self._failure = error
        if self._failure is not None:
            # Not requested again for each site: each attempt may take minutes to fail.
            if isinstance(self._failure, StreamingError):
                raise StreamingError(f"the model did not arrive: {self._failure}")
            raise self._failure
        assert self.kept is not None
        if self._worker.needs_base and not self.task.mapped:
            self._worker.base = KnownModel(self.task.model, self.kept)
        return self.kept

    def _received_mapped(self, into: Into | None, place: Place | None) -> Params:
        """Return views of the model's file, or what it is to be received into, filled from it."""
        model = self._map()
        if into is None and place is not None:
            into = place(model.layout)
        if into is None:
            return model.tensors(self._framework)
        body = MemoryBody.over(into)
        if difference := model.layout.difference(body.layout):
            raise ClientError(f"the model does not fit what it is received into: {difference}")
        copy(model.source(), body)
        return body.tensors

    def _copied(self, sink_for: SinkFor, site: SiteWork) -> Params:
        """Return a copy of the received model, as the site's filters leave it."""
        place = _same_for_all_attempts(lambda layout: sink_for(layout, layout))
        model = self._arrived(place)
        seen = self._filters.received(model, site)
        self.held_back = model.layout.by_name.keys() - seen.layout.by_name.keys()
        is_whole = seen.layout == model.layout
        sink = place(model.layout) if is_whole else sink_for(model.layout, seen.layout)
        copy(seen, sink)
        return sink.tensors

    def _new(self, layout: Layout, part: Layout) -> MemoryBody:
        return self._worker.memory.allocate(part, self._worker.info.exchange_format)

    def _unseen(self, layout: Layout) -> MemoryBody:
        """Allocate a model that code gets copies of: in torch, which has all dtypes."""
        return self._worker.memory.allocate(layout, "pytorch")

    def _existing(self, into: Into) -> SinkFor:
        self._worker.memory.release()
        body = MemoryBody.over(into)

        def existing(layout: Layout, part: Layout) -> MemoryBody:
            joined = self._note(layout)
            difference = joined.model.difference(body.layout)
            if difference:
                raise ClientError(f"the model does not fit what it is received into: {difference}")
            whole = joined.beside(body, self._framework)
            # Of memory in two tensors, what was fetched last is to stay.
            whole.is_used = not whole.overlaps
            return whole if part == layout else whole.part(part)

        return existing

    def _placed(self, place: Place) -> SinkFor:
        def placed(layout: Layout, part: Layout) -> MemoryBody:
            into = place(self._note(layout).model)
            return self._new(layout, part) if into is None else self._existing(into)(layout, part)

        return placed


def _same_for_all_attempts(sink_for: Callable[[Layout], BodyT]) -> Callable[[Layout], BodyT]:
    """Return a function that gives every attempt to fetch a model the memory of the first."""
    sinks: list[BodyT] = []

    def first(layout: Layout) -> BodyT:
        if not sinks:
            sinks.append(sink_for(layout))
        return sinks[0]

    return first
