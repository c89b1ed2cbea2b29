"""Tasks: what the server asks of a worker, and what it accepts as the answer."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from flstream.codecs.lossy import LossyCodec
from flstream.codecs.update_form import UpdateForm
from flstream.errors import ChannelClosedError, WorkerLostError
from flstream.model.checkpoint import FileSource
from flstream.model.source import Source
from flstream.server.collector import START_KEY, UNLIMITED, TaskWaits
from flstream.server.context import ServerContext
from flstream.server.model_offers import ModelOffer, offers_by_peers, offers_by_server
from flstream.server.pooled_worker import Report, SiteLost
from flstream.server.site_queue import SiteBatch
from flstream.server.worker_handle import TIMEOUT_KEY, WorkerHandle
from flstream.streaming.coding import EncoderFor
from flstream.streaming.refs import Delivery
from flstream.telemetry.events import Transfer
from flstream.worker.messages import (
    LAYOUT,
    MODEL,
    Answered,
    Failed,
    Progress,
    SiteTask,
    Task,
    TaskKind,
    is_weight,
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


@dataclass
class Turn:
    """The progress of a worker through the sites of its task. Any thread may look.

    Attributes:
        begun: Number of sites whose turn has begun.
        since: When the last of these turns began, in seconds since the epoch.
    """

    begun: int
    since: float


class TaskGiven(NamedTuple):
    """A worker was given the task for some sites, and is fetching the model."""

    worker: str
    sites: SiteBatch
    delivery: Delivery
    turn: Turn


class ModelArrived(NamedTuple):
    """A worker has the model, for the sites of its task.

    Attributes:
        worker: Name of the worker.
        sites: The sites.
        cost: Cost of the model's way.
    """

    worker: str
    sites: SiteBatch
    cost: Transfer


class WorkerGone(NamedTuple):
    """A worker was lost with the task; its sites have failed, or the task is given again."""

    worker: str


def ask(
    context: ServerContext, spec: TaskSpec, worker: WorkerHandle, sites: SiteBatch, report: Report
) -> Answered:
    """Give a worker the task for some sites, and wait for the answer.

    Raises:
        WorkerLostError: The worker ended, died, took too long or answered something else.
        AbortedError: The run is being stopped.
    """
    began = monotonic()
    offers = spec.offers(context, worker)
    deadline, key = began + spec.seconds, TIMEOUT_KEY
    if spec.waits.start is not None and spec.waits.start < spec.seconds:
        deadline, key = began + spec.waits.start, START_KEY
    at_work = sites[0] if len(sites) == 1 else None
    turn = Turn(0, time.time())
    acknowledged = False
    try:
        offer = _next_offer(offers)
        # A worker that has just ended has most likely said why, and that is still to be received.
        with suppress(ChannelClosedError):
            worker.control.send(spec.message(offer, sites))
        report(TaskGiven(worker.name, sites, offer.delivery, turn))
        failed: set[str] = set()
        while True:
            message = worker.next_message(deadline, f"answer its {spec.kind} task", key)
            match message:
                case Progress(spec.effect, "taken"):
                    if not acknowledged:
                        deadline, key = began + spec.seconds, TIMEOUT_KEY
                    acknowledged = True
                case Progress(spec.effect, "host lost") if spec.hosts:
                    offer = _next_offer(offers)
                    with suppress(ChannelClosedError):
                        worker.control.send(spec.message(offer, sites))
                case Progress(_, "turn", site) if site in sites:
                    # Each has as long as if it were alone.
                    at_work, deadline = site, monotonic() + spec.seconds
                    turn.begun, turn.since = turn.begun + 1, time.time()
                case Progress(spec.effect, "received", cost=cost):
                    report(ModelArrived(worker.name, sites, cost))
                case Failed(site, _, reason, code) if site in sites and site not in failed:
                    failed.add(site)
                    report(SiteLost(site, reason, code), site)
                case Failed(reason=reason, exit_code=code):
                    raise WorkerLostError(reason, exit_code=code)
                case Answered():
                    _check(spec, message, {*sites} - failed)
                    return message
                case _:
                    raise WorkerLostError(f"it sent {type(message).__name__}, out of turn")
    except WorkerLostError as error:
        error.site = at_work
        error.is_acknowledged = acknowledged
        report(WorkerGone(worker.name))
        raise
    finally:
        offers.close()


def _next_offer(offers: Generator[ModelOffer]) -> ModelOffer:
    offer = next(offers, None)
    if offer is None:
        raise WorkerLostError("it received the model from no other worker, nor from the file")
    return offer


def _check(spec: TaskSpec, answer: Answered, sites: set[str]) -> None:
    if answer.effect != spec.effect:
        raise WorkerLostError(f"it answered task {answer.effect}, which it was not given")
    if {each.site for each in answer.sites} != sites or len(answer.sites) != len(sites):
        raise WorkerLostError("it answered for sites that it was not asked for")
    for each in answer.sites:  # what it runs may have had a hand in that
        if not is_weight(each.weight):
            raise WorkerLostError(f"it gave the update of {each.site} the weight {each.weight:g}")
    for each in answer.sites if spec.has_updates else ():
        if each.update is None and (each.has_params or spec.kind == "train"):
            raise WorkerLostError(f"it answered a {spec.kind} task without a model")
