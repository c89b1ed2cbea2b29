"""The model of a task at a worker, which receives it once for all of its sites."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flstream.client.fl_model import FLModel
from flstream.client.learner import SiteContext
from flstream.client.own_files import KeptTensors
from flstream.client.received_values import WatchedValues
from flstream.codecs.frames import FrameCoder
from flstream.codecs.lossy import LossyCodec
from flstream.errors import (
    CheckpointError,
    ClientError,
    FlstreamError,
    RefusedError,
    StreamingError,
)
from flstream.model.checkpoint import BodyFile, file_to_overwrite
from flstream.model.composed import part_of
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.mapped import MappedModel
from flstream.model.memory import BufferSource, MemoryBody, Params
from flstream.model.order import ORDER, in_order
from flstream.model.source import Source
from flstream.streaming.download import RemoteSource
from flstream.streaming.selection import ranges_of, selected_memory
from flstream.telemetry.events import SERVER, Transfer
from flstream.worker.answers import SITE, expect_file_alone
from flstream.worker.joined_bodies import JoinedBodies
from flstream.worker.messages import Progress, Task
from flstream.worker.meta import OPTIMIZER_PARAMS, unpack_meta
from flstream.worker.worker import Worker

if TYPE_CHECKING:
    from flstream.client.session import Into, Place


BodyT = TypeVar("BodyT", bound=MemoryBody | BodyFile)

Seen = Callable[[Layout], MemoryBody]
"""Function from the layout of a model to where training code sees it."""


class _Coding(NamedTuple):
    """Codec with a loss in whose form a model comes, and the model's own layout.

    What it has encoded are changes from a base where there is one.
    """

    codec: LossyCodec
    layout: Layout
    base: Source | None = None

    def decode(self, sent: Source) -> Source:
        """Return the model of its encoded form."""
        return self.codec.decode(sent, self.layout, self.base)


def _as_sent(model: Source | None, coding: _Coding | None) -> Source | None:
    """Return a model that is here in the form in which another one comes."""
    if model is None or coding is None:
        return model
    return coding.codec.encode(model, block=coding.codec.comparable_block)


def received_model(
    task: Task,
    site: str,
    tensors: Params | None,
    bodies: Mapping[str, Params] | None = None,
    read: set[str] | None = None,
) -> FLModel:
    """Return the model of a task as training code receives it.

    There are no ``tensors`` where a model is to be submitted. ``bodies`` are the tensors of each
    body that travels with the model; ``read`` takes the names of the values that the code reads.
    """
    sent, known = unpack_meta(task.meta_of(site)), set[str]() if read is None else read
    meta = {**sent.meta, **(bodies or {}), "site_name": site, "task": task.kind}

    def optimizer_read(names: Collection[str]) -> None:
        if names:
            known.add(OPTIMIZER_PARAMS)

    optimizer = sent.optimizer_params
    return FLModel(
        params=tensors,
        optimizer_params=None if optimizer is None else WatchedValues(optimizer, optimizer_read),
        current_round=task.round - 1,
        total_rounds=task.total_rounds,
        meta=WatchedValues(meta, known.update) if sent.meta or bodies else meta,
    )


class TaskModel:
    """Model of a task, with the bodies beside it.

    Attributes:
        task: The task; another one once the peer that offered the model was lost.
        layout: Layout of the model as it was received, since training may break the ties between
            the tensors that it sends; None before.
        joint: The same with the bodies beside it.
        joined: Bodies beside the model in the joint layout; None before, and where there are none.
        selected: Names of the tensors that are aggregated; None for all.
        held_back: Names of tensors that the current site's code does not receive.
        kept: The received model, of which code gets a copy; None where it gets the model itself.
        worker: The worker.
    """

    def __init__(self, worker: Worker, task: Task) -> None:
        self.task = task
        self.layout: Layout | None = None
        self.joint: Layout | None = None
        self.joined: JoinedBodies | None = None
        self.selected: Collection[str] | None = None
        self.held_back: Collection[str] = ()
        self.kept: MemoryBody | BodyFile | BufferSource | None = None
        self._mapped: MappedModel | None = None
        self.worker = worker
        self._changes = worker.changes
        self._framework = worker.info.job.train.exchange_format
        self._has_several_sites = len(task.sites) > 1
        # The last one that has received it.
        self._site: SiteContext | None = None
        # Why it did not arrive.
        self._failure: FlstreamError | None = None

    def receive(
        self, site: SiteContext, into: Into | None, place: Place | None
    ) -> tuple[Params, Mapping[str, Params]]:
        """Return the model's tensors for a site, and the tensors of bodies by name."""
        self._site = site
        target: Callable[[Layout], Into | None] = place or (lambda layout: into)
        sink_for = partial(self._sink, target)
        whole = _same_for_all_attempts(lambda layout: sink_for(layout, layout))
        tensors: Params
        seen = self._seen(site, whole)
        if seen is None:
            tensors = self._fetch(whole).tensors
        elif self._mapped is not None and self.kept is None and target(seen.layout) is None:
            tensors = self._mapped.tensors(self._framework)
        else:
            assert self.joint is not None
            is_whole = seen.layout == self.joint
            sink = whole(self.joint) if is_whole else sink_for(self.joint, seen.layout)
            copy(seen, sink)
            tensors = sink.tensors
        bodies: Mapping[str, Params] = {}
        if self.joined is not None:
            tensors, bodies = self.joined.taken_apart(tensors, self._framework)
        if into is None and self.layout is not None:
            tensors = in_order(tensors, self.layout, self.task.order)
        return tensors, bodies

    def fetch(self, names: Sequence[str], site: SiteContext) -> Params:
        """Return some tensors of the model, without its other bytes where it is not here."""
        task, worker, codecs = self.task, self.worker, self._changes.model_codecs
        if task.joined or task.parts is not None or task.host is not None:
            raise ClientError(
                "the workflow sends more than a model, or parts of it, or from site to site; call "
                "receive(), as fetch() has no part of that"
            )
        framework = self._framework
        if (seen := self._seen(site)) is not None:
            sink = selected_memory(seen.layout, names, None, framework, SERVER)
            copy(part_of(seen, set(sink.layout.by_name)), sink)
        else:
            if codecs.lossy is not None or codecs.frames is not None:
                raise ClientError(
                    "streaming.codecs.down encodes models, of which fetch() has no part; call "
                    "receive(), or leave the codecs out"
                )
            token, settings = task.token, worker.info.streaming
            with RemoteSource(worker.down, token, settings, eager=False, is_kept=True) as remote:
                sink = selected_memory(remote.layout, names, None, framework, remote.peer)
                remote.deliver(sink, wanted=ranges_of(sink))
                remote.confirm()
            worker.received(task.effect, remote.cost)
        return {name: sink.tensors[name] for name in names}

    def receive_file(self, path: Path, site: SiteContext) -> None:
        """Receive the model into a safetensors file, in which code sees it."""
        expect_file_alone(self.task.joined)
        if self.task.parts is not None:
            raise ClientError(
                "the workflow sends parts of models, and receive(file=...) takes whole ones; "
                "leave out file"
            )
        self.worker.memory.release()

        def file_for(layout: Layout) -> BodyFile:
            # Without the format, transformers opens no file.
            facts = {"format": "pt", ORDER: self.task.order, SITE: site.name}
            return file_to_overwrite(path, layout, facts)

        sink_for = _same_for_all_attempts(file_for)
        if (seen := self._seen(site)) is not None:
            copy(seen, sink_for(seen.layout))
        else:
            self._fetch(sink_for)

    def begin_late(self, site: SiteContext) -> Future[tuple[MemoryBody, Transfer]]:
        """Fetch late tensors in a thread beside the training, once they are on offer.

        Returns:
            The tensors and what they have cost, or the StreamingError with which they did not come.
        """
        late: Future[tuple[MemoryBody, Transfer]] = Future()

        def fetch() -> None:
            try:
                late.set_result(self._late(site))
            except BaseException as error:
                late.set_exception(error)

        Thread(target=fetch, name="late tensors", daemon=True).start()
        return late

    def _late(self, site: SiteContext) -> tuple[MemoryBody, Transfer]:
        worker, offered = self.worker, self.worker.receive_late(self.task.effect)
        changed = site if offered.are_changes else None
        with RemoteSource(worker.down, offered.token, worker.info.streaming) as remote:
            coding = self._coding(remote, changed)
            if coding is None:
                body = MemoryBody.allocate(remote.layout, self._framework)
                remote.deliver(body)
            else:
                model = coding.decode(remote)
                body = MemoryBody.allocate(model.layout, self._framework)
                copy(model, body, origin=remote.peer)
        return body, remote.cost

    def take_late(self, body: MemoryBody, site: SiteContext) -> None:
        """Keep late tensors, which the update is compared with from here on."""
        if self._changes.keep_model(self.task.kind):
            KeptTensors.received(site.state_dir).write_part(body)

    def compared(self, site: SiteContext) -> Source | None:
        """Return the model that an update is compared with, as it was received; None without."""
        if self.task.parts is None or self.kept is None:
            return self.kept
        return KeptTensors.received(site.state_dir).source()

    def _seen(self, site: SiteContext, place: Seen | None = None) -> Source | None:
        """Return the model as code sees it, where it is here; None where it comes straight there.

        ``place`` returns where code will see it, which may have some of its bytes.
        """
        if self._has_several_sites or self._changes.keep_model(self.task.kind):
            model = self._arrived(place)
            self._keep(model, site)
            seen = self._changes.received(model, site)
            self.held_back = model.layout.by_name.keys() - seen.layout.by_name.keys()
            return seen
        return self._map() if self.task.mapped else None

    def _keep(self, model: Source, site: SiteContext) -> None:
        """Keep the parts of models that a site receives in one file, for its updates."""
        parts = self.task.parts
        if parts is None:
            return
        if parts.is_whole:
            KeptTensors.received(site.state_dir).write_body(model)
        else:
            KeptTensors.received(site.state_dir).write_part(model)

    def _sink(
        self, place: Callable[[Layout], Into | None], layout: Layout, part: Layout
    ) -> MemoryBody:
        """Return the memory in which code receives a model, or a part of it."""
        model = self._note(layout)
        into = place(model)
        if into is None:
            return self.worker.memory.allocate(part, self._framework)
        self.worker.memory.release()
        body = MemoryBody.over(into)
        if self.task.parts is not None and body.tensors.keys() >= set(model.names):
            body = body.part(model)
        if difference := model.difference(body.layout):
            raise ClientError(f"the model does not fit what it is received into: {difference}")
        whole = body if self.joined is None else self.joined.beside(body, self._framework)
        # Where two tensors share memory, the one fetched last stays.
        whole.is_used = not whole.overlaps
        return whole if part == layout else whole.part(part)

    def _arrived(self, seen: Seen | None) -> MemoryBody | BodyFile | BufferSource:
        """Return the received model, which code gets a copy of."""
        if self.kept is None and self._failure is None:
            try:
                if self.task.mapped:
                    self.kept = self._map()
                elif self._has_several_sites:
                    # In torch, which has all dtypes.
                    self.kept = self._fetch(
                        partial(self.worker.memory.allocate, framework="pytorch")
                    )
                else:
                    # A filtered model has none of the model's bytes.
                    self.kept = self._fetch(
                        self._changes.place, None if self._changes.down else seen
                    )
            except FlstreamError as error:
                self._failure = error
        if self._failure is not None:
            # Not requested again for each site: each attempt may take minutes to fail.
            if isinstance(self._failure, StreamingError):
                raise StreamingError(f"the model did not arrive: {self._failure}")
            raise self._failure
        assert self.kept is not None
        is_base = self._changes.has_base and self.task.parts is None
        if is_base and not self.task.mapped:
            self.worker.base = self.task.model, self.kept
        return self.kept

    def _fetch(self, sink_for: Callable[[Layout], BodyT], seen: Seen | None = None) -> BodyT:
        """Fetch the model; from another peer if the offering one is lost.

        Where code will see it in another place, memory that it has received a model into before has
        what need not be sent.
        """
        worker, sink_for = self.worker, _same_for_all_attempts(sink_for)
        while True:
            task = self.task
            try:
                with ExitStack() as stack:
                    receiver = worker.down
                    if task.host is not None:
                        receiver = stack.enter_context(worker.peers.dial(task.host))
                    are_changes = task.parts is not None and task.parts.are_changes
                    changed = self._site if are_changes else None
                    streaming, (name, base) = worker.info.streaming, worker.base
                    digests = streaming.reuse and worker.has_received
                    remote = stack.enter_context(
                        RemoteSource(receiver, task.token, streaming, digests=digests)
                    )
                    coding = self._coding(remote, changed)
                    if (frames := self._changes.model_codecs.frames) and task.host is None:
                        remote.decoder = FrameCoder(
                            frames, remote.layout, _as_sent(base, coding), name
                        )
                    model = remote if coding is None else coding.decode(remote)
                    body: BodyT = sink_for(model.layout)
                    if (held := self._held(seen, coding, body)) is not None:
                        remote.reuse(held)
                    if model is remote:
                        remote.deliver(body)
                    else:
                        copy(model, body, origin=remote.peer)
                break
            except StreamingError:
                if task.host is None:
                    raise
                worker.send(Progress(task.effect, "host lost"))
                if (other := worker.receive()) is None:
                    raise RefusedError("the run is over") from None
                self.task = other
        self._take(body.layout)
        worker.received(self.task.effect, remote.cost)
        return body

    def _coding(self, remote: RemoteSource, changed: SiteContext | None) -> _Coding | None:
        """Return how a model comes encoded; None for as it is.

        ``changed`` is the site that is sent changes of what it has; None where nobody is.
        """
        codecs = self._changes.model_codecs
        lossy = codecs.lossy if changed is None else codecs.changes
        if lossy is None or remote.decoded is None:
            return None
        base = None if changed is None else KeptTensors.received(changed.state_dir).source()
        return _Coding(lossy, remote.decoded, base)

    def _held(
        self, seen: Seen | None, coding: _Coding | None, body: MemoryBody | BodyFile
    ) -> Source | None:
        """Return what may have some of the model's bytes, in the form in which it comes."""
        if coding is not None and coding.base is not None:
            return None
        source: Source | None = body if body.is_used else self.worker.base[1]
        if source is None and seen is not None and (place := seen(body.layout)).is_used:
            source = place
        return _as_sent(source, coding)

    def _map(self) -> MappedModel:
        """Map the model's checkpoint, once, by the descriptor that the server sends."""
        if self._mapped is not None:
            return self._mapped
        worker = self.worker
        # No model is expected in memory soon.
        worker.memory.release()
        with RemoteSource(worker.down, self.task.token, worker.info.streaming) as remote:
            file = remote.take_file()
            if file is None:
                raise RefusedError("the server has not handed over the model's checkpoint")
            model = MappedModel(file.fd, "the checkpoint that the server has handed over")
            if model.layout != remote.layout:
                raise CheckpointError("the server has handed over a checkpoint of other tensors")
        self._mapped = model
        self._take(model.layout)
        worker.received(self.task.effect, Transfer(reused=model.layout.nbytes))
        return model

    def _take(self, layout: Layout) -> None:
        """Keep the layout of the received body, and check filters and selection."""
        model, parts = self._note(layout), self.task.parts
        if parts is None:
            self.selected = self._changes.selected(model)
        else:
            self.selected = frozenset(parts.send)

    def _note(self, layout: Layout) -> Layout:
        """Keep a received layout, and return the model's layout in it."""
        if self.layout is None:
            names, model = self.task.joined, layout
            if names and (flaw := self._changes.flaw_beside):
                raise ClientError(
                    f"the workflow sends {names[0]!r} beside the model, which {flaw} pass over; "
                    "leave them out, or take another workflow"
                )
            if names:
                has_alias = self.worker.info.job.train.alias is not None
                self.joined = JoinedBodies(names, layout, has_alias=has_alias)
                model = self.joined.model
            self.joint, self.layout = layout, model
        return self.layout


def _same_for_all_attempts(sink_for: Callable[[Layout], BodyT]) -> Callable[[Layout], BodyT]:
    """Return a function that reuses the memory of a model's first attempt."""
    sinks: list[BodyT] = []

    def first(layout: Layout) -> BodyT:
        if not sinks:
            sinks.append(sink_for(layout))
        return sinks[0]

    return first
