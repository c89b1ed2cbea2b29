"""Tasks: what the server asks of a worker, and how the model gets there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from flstream.codecs.chain import UpdateForm
from flstream.errors import ChannelClosedError
from flstream.model.checkpoint import FileSource
from flstream.model.source import Source
from flstream.server.collector import UNLIMITED, TaskWaits
from flstream.server.context import ServerContext
from flstream.server.site_queue import SiteBatch
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.coding import EncoderFor
from flstream.streaming.download import MOST_EAGER_BYTES
from flstream.streaming.refs import Delivery
from flstream.worker.messages import (
    Late,
    Offered,
    SiteTask,
    Task,
    TaskKind,
    TaskParts,
)

if TYPE_CHECKING:
    from flstream.codecs.lossy import LossyCodec


class ModelOffer(NamedTuple):
    """An offer of a model to one worker.

    Attributes:
        token: Token of the model.
        host: The offer of another worker; None where it is the server's.
        delivery: What the worker was sent so far; nothing is known of what a peer sends.
        is_mapped: Whether the worker is to map the model's checkpoint.
    """

    token: bytes
    host: Offered | None
    delivery: Delivery
    is_mapped: bool = False


def offers_by_server(
    context: ServerContext,
    model: Source,
    worker: WorkerHandle,
    encoder: EncoderFor | None = None,
    coded: Source | None = None,
) -> Generator[ModelOffer]:
    """Offer a model to a worker, once; closing the iterator withdraws it.

    Args:
        context: The server.
        model: The model.
        worker: Who receives it.
        encoder: What makes its frames smaller; None for nothing.
        coded: Its form under a codec with a loss, which is sent in its place; None for none.
    """
    sent, decoded = (model, None) if coded is None else (coded, model.layout)
    ref = context.service.offer(sent, [worker.receiver], encoder=encoder, decoded=decoded)
    # One that comes together with its layout anyway is not worth mapping.
    is_mapped = isinstance(sent, FileSource) and sent.layout.nbytes > MOST_EAGER_BYTES
    try:
        delivery = ref.deliveries[worker.receiver]
        yield ModelOffer(ref.token, None, delivery, is_mapped and context.job.streaming.maps)
    finally:
        ref.abort("the task is over")


@dataclass(frozen=True)
class TaskSpec:
    """One task for the sites of a cohort.

    Attributes:
        task: What each worker is given, without the sites and the offer of the model.
        model: The model that the sites receive.
        sites: Each site's own part, in the order in which updates are folded.
        seconds: How long a site may take.
        form: Returns the form in which a site's update comes, once it has; None for evaluations.
        hosts: Sites whose workers offer the model, the first that lives; none for the server.
        waits: How long there may be nothing from the sites.
        encoder: What makes frames of the model smaller; None for nothing.
        lossy: What encodes the model before that, which is rounded to what it leaves; None for
            nothing.
        name: Name of the model, by which workers know that they have it.
        part: The tensors of the model that sites receive; None for all.
        whole: The sites that receive all tensors all the same.
        changes: The encoded changes of what sites receive from the model before; None for none.
        following: The sites that receive these.
        own_meta: By site, the payload message of its own values; none where all have the task's.
        is_checked: Whether updates are checked to be finite as they come, and not in the fold.
    """

    task: Task
    model: Source
    sites: Mapping[str, SiteTask]
    seconds: float
    form: Callable[[str], UpdateForm] | None = None
    hosts: Sequence[str] = ()
    waits: TaskWaits = UNLIMITED
    encoder: EncoderFor | None = None
    lossy: LossyCodec | None = None
    name: str = ""
    part: Source | None = None
    whole: Set[str] = frozenset()
    changes: Source | None = None
    following: Set[str] = frozenset()
    own_meta: Mapping[str, bytes] = field(default_factory=dict)
    is_checked: bool = False

    @property
    def kind(self) -> TaskKind:
        """Kind of the task."""
        return self.task.kind

    @property
    def has_updates(self) -> bool:
        """Whether sites send tensors: in all but evaluations."""
        return self.kind != "evaluate"

    @property
    def cohort(self) -> Sequence[str]:
        """The sites' names, in order."""
        return list(self.sites)

    def offers(
        self, context: ServerContext, worker: WorkerHandle, sites: SiteBatch
    ) -> Generator[ModelOffer]:
        """Offers of the model to a worker for sites, to be closed once its task is over."""
        if not self.hosts:
            model, encoder = self.model, self.encoder
            if self.part is not None and not self._is_whole(sites):
                model = self.part
            elif self.part is not None:
                encoder = None  # which is for the part
            if not self.following.isdisjoint(sites):
                return offers_by_server(context, model, worker, None, self.changes)
            coded = None if self.lossy is None else self.lossy.encode(model)
            return offers_by_server(context, model, worker, encoder, coded)
        from flstream.server.peer_link import offers_by_peers

        assert isinstance(self.model, FileSource)
        return offers_by_peers(context, self.model, worker, self.hosts)

    def bytes_down(self, site: str) -> int:
        """Bytes of the model in the form in which a site is sent it."""
        if site in self.following:
            assert self.changes is not None
            return self.changes.layout.nbytes
        model = self.model if self.part is None or self._is_whole((site,)) else self.part
        return self._sent_bytes(model)

    def late_bytes(self, tensors: Source, changes: Source | None) -> int:
        """Bytes of tensors that a site is sent while it trains, as they travel."""
        return self._sent_bytes(tensors) if changes is None else changes.layout.nbytes

    def _sent_bytes(self, model: Source) -> int:
        if self.lossy is None:
            return model.layout.nbytes
        return self.lossy.encode(model).layout.nbytes

    def message(self, offer: ModelOffer, sites: SiteBatch) -> Task:
        """The message that gives a worker the task for some of the sites."""
        parts = self.task.parts
        return replace(
            self.task,
            token=offer.token,
            model=self.name,
            sites=[self.sites[site] for site in sites],
            host=offer.host,
            mapped=offer.is_mapped,
            own_meta={site: self.own_meta[site] for site in sites if site in self.own_meta},
            parts=None if parts is None else self._parts_for(parts, sites),
        )

    def _parts_for(self, parts: TaskParts, sites: SiteBatch) -> TaskParts:
        are_changes = not self.following.isdisjoint(sites)
        return replace(parts, is_whole=self._is_whole(sites), are_changes=are_changes)

    def _is_whole(self, sites: SiteBatch) -> bool:
        """Whether sites receive all tensors of the model."""
        return self.part is None or not self.whole.isdisjoint(sites)


class LateTensors:
    """The late tensors of one site's training, on offer once they and a worker are there.

    The thread that runs the workflow makes them, and a thread of the pool has the worker.
    """

    def __init__(self, context: ServerContext, spec: TaskSpec) -> None:
        self._context = context
        self._spec = spec
        self._lock = Lock()
        self._tensors: tuple[Source, Source | None] | None = None
        self._worker: WorkerHandle | None = None
        self._offers: Generator[ModelOffer] | None = None

    def offer(self, tensors: Source, changes: Source | None) -> None:
        """Offer the tensors to the worker that trains, or to the next one that does.

        Args:
            tensors: The tensors.
            changes: Their encoded changes from what the site has, sent in their place; None to
                send them as other models are.
        """
        with self._lock:
            self._tensors = tensors, changes
            self._send()

    def give(self, worker: WorkerHandle) -> None:
        """Take note of the worker that was given the training."""
        with self._lock:
            self._worker = worker
            self._send()

    def withdraw(self) -> None:
        """Withdraw the offer: the worker is done with its task, or lost."""
        with self._lock:
            self._worker = None
            if self._offers is not None:
                self._offers.close()
                self._offers = None

    def _send(self) -> None:
        worker, lossy = self._worker, self._spec.lossy
        if self._tensors is None or worker is None or self._offers is not None:
            return
        tensors, changes = self._tensors
        coded = lossy.encode(tensors) if changes is None and lossy is not None else changes
        self._offers = offers_by_server(self._context, tensors, worker, coded=coded)
        token = next(self._offers).token
        late = Late(self._spec.task.effect, token, are_changes=changes is not None)
        with suppress(ChannelClosedError):  # whoever waits for its answer learns of its end
            worker.control.send(late)
