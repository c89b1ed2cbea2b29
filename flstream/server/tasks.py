"""Tasks: what the server asks of a worker."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from flstream.codecs.lossy import LossyCodec
from flstream.codecs.update_form import UpdateForm
from flstream.model.checkpoint import FileSource
from flstream.model.source import Source
from flstream.server.collector import UNLIMITED, TaskWaits
from flstream.server.context import ServerContext
from flstream.server.model_offers import ModelOffer, offers_by_peers, offers_by_server
from flstream.server.site_queue import SiteBatch
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.coding import EncoderFor
from flstream.worker.messages import (
    LAYOUT,
    MODEL,
    SiteTask,
    Task,
    TaskKind,
)


@dataclass(frozen=True)
class TaskSpec:
    """One task for the sites of a cohort.

    Attributes:
        kind: What the sites do.
        effect: Number of the workflow's effect that asks for it.
        round: Number of the round, from 1; of an evaluation, that of the model.
        total_rounds: Rounds of the job.
        model: The model that the sites receive.
        sites: Each site's own part, in the order in which updates are folded.
        form: The form in which updates come.
        seconds: How long a site may take.
        keeps_state: Whether what the sites leave in their state is kept.
        oldest: Number of the earliest effect that the run may go back to.
        meta: Payload message of the values sent along; empty for none.
        order: Order in which training code is to find the tensors; empty for the layout's.
        bodies: Names of the bodies that travel with the model, joined with it into one.
        hosts: Sites whose workers offer the model, the first that lives; none for the server.
        folder: Folder in which workers write updates as files; empty for none.
        is_inline: Whether updates travel in the answers.
        waits: How long there may be nothing from the sites.
        encoder: What makes frames of the model smaller; None for nothing.
        lossy: What encodes the model before that, which is rounded to what it leaves; None for
            nothing.
        is_checked: Whether updates are checked to be finite as they come, and not in the fold.
    """

    kind: TaskKind
    effect: int
    round: int
    total_rounds: int
    model: Source
    sites: Mapping[str, SiteTask]
    form: UpdateForm
    seconds: float
    keeps_state: bool = True
    oldest: int = 0
    meta: bytes = b""
    order: str = ""
    bodies: Sequence[str] = ()
    hosts: Sequence[str] = ()
    folder: str = ""
    is_inline: bool = False
    waits: TaskWaits = UNLIMITED
    encoder: EncoderFor | None = None
    lossy: LossyCodec | None = None
    is_checked: bool = False

    @property
    def has_updates(self) -> bool:
        """Whether sites send tensors: in all but evaluations."""
        return self.kind != "evaluate"

    @property
    def cohort(self) -> Sequence[str]:
        """The sites' names, in order."""
        return list(self.sites)

    def offers(self, context: ServerContext, worker: WorkerHandle) -> Generator[ModelOffer]:
        """Offers of the model to a worker, to be closed once its task is over."""
        if not self.hosts:
            return offers_by_server(context, self.model, worker, self.encoder, self.lossy)
        assert isinstance(self.model, FileSource)
        return offers_by_peers(context, self.model, worker, self.hosts)

    def message(self, offer: ModelOffer, sites: SiteBatch) -> Task:
        """The message that gives a worker the task for some of the sites."""
        bodies = {MODEL: offer.token}
        if offer.layout:
            bodies[LAYOUT] = offer.layout
        return Task(
            kind=self.kind,
            effect=self.effect,
            round=self.round,
            total_rounds=self.total_rounds,
            bodies=bodies,
            model=self.form.name,
            sites=[self.sites[site] for site in sites],
            keeps_state=self.keeps_state,
            oldest=self.oldest,
            meta=self.meta,
            order=self.order,
            joined=list(self.bodies),
            host=offer.host,
            folder=self.folder,
            inline=max(self.model.layout.nbytes, 1) if self.is_inline else 0,
            mapped=offer.is_mapped,
        )
