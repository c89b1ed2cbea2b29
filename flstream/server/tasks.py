"""Tasks: what the server asks of a worker."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

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
        task: What each worker is given, without the sites and the offer of the model.
        model: The model that the sites receive.
        sites: Each site's own part, in the order in which updates are folded.
        form: The form in which updates come.
        seconds: How long a site may take.
        hosts: Sites whose workers offer the model, the first that lives; none for the server.
        waits: How long there may be nothing from the sites.
        encoder: What makes frames of the model smaller; None for nothing.
        lossy: What encodes the model before that, which is rounded to what it leaves; None for
            nothing.
        is_checked: Whether updates are checked to be finite as they come, and not in the fold.
    """

    task: Task
    model: Source
    sites: Mapping[str, SiteTask]
    form: UpdateForm
    seconds: float
    hosts: Sequence[str] = ()
    waits: TaskWaits = UNLIMITED
    encoder: EncoderFor | None = None
    lossy: LossyCodec | None = None
    is_checked: bool = False

    @property
    def kind(self) -> TaskKind:
        """What the sites do."""
        return self.task.kind

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
        return replace(
            self.task,
            bodies=bodies,
            model=self.form.name,
            sites=[self.sites[site] for site in sites],
            host=offer.host,
            mapped=offer.is_mapped,
        )
