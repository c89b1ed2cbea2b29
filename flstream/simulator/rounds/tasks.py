"""Tasks: what the server asks of a worker, and what it takes as the answer."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple, TypeVar

from flstream.client.messages import (
    Began,
    Failed,
    Received,
    Scored,
    SiteTask,
    Task,
    TaskKind,
    Trained,
)
from flstream.errors import ChannelClosedError, WorkerLostError
from flstream.model.body import Source
from flstream.simulator.crew.batches import Batch
from flstream.simulator.crew.crew import Crew, Lost, Say
from flstream.simulator.crew.worker import Worker
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.refs import Delivery, Ref
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import Transfer
from flstream.workflows.sampling import site_seed

AnswerT = TypeVar("AnswerT", Trained, Scored)


@dataclass
class Turn:
    """Whose turn it is of the sites that a worker deals with. Any thread may look.

    Attributes:
        begun: how many have had theirs, or are having it.
        since: when the last of these began, in seconds since the epoch.
    """

    begun: int
    since: float


class Given(NamedTuple):
    """Sites were given their task, and a worker is fetching the model for them."""

    worker: str
    sites: Batch
    delivery: Delivery
    turn: Turn


class Arrived(NamedTuple):
    """A worker has the model, for the sites it deals with."""

    worker: str
    sites: Batch
    cost: Transfer


@dataclass(frozen=True)
class Assignment:
    """One task of a round, for whichever sites.

    Attributes:
        kind: what they are to do.
        round: number of the round.
        total_rounds: of the job.
        model: what they start from.
        seed: of the job.
        settings: how models are streamed.
        frame: longest frame in bytes in which updates may be pushed.
        seconds: how long a site may take.
    """

    kind: TaskKind
    round: int
    total_rounds: int
    model: Source
    seed: int
    settings: StreamSettings
    frame: int
    seconds: float

    def task(self, ref: Ref, sites: Batch) -> Task:
        """The message for a worker."""
        seeds = [
            SiteTask(site, site_seed(self.seed, site, self.round, self.kind)) for site in sites
        ]
        return Task(self.kind, self.round, self.total_rounds, ref.token, self.frame, seeds)


def ask(
    assignment: Assignment,
    crew: Crew,
    service: DownloadService,
    worker: Worker,
    sites: Batch,
    say: Say,
    answer_type: type[AnswerT],
) -> AnswerT:
    """Give a worker its task for some sites, and wait for the answer.

    Raises:
        WorkerLostError: the worker ended, died, took too long or answered something else.
        AbortedError: the run is being stopped.
    """
    began = monotonic()
    push = assignment.settings if assignment.settings.push else None
    ref = service.offer(assignment.model, [worker.receiver], push=push)
    delivery = ref.deliveries[worker.receiver]
    deadline = began + assignment.seconds
    at_work = sites[0] if len(sites) == 1 else None
    turn = Turn(0, time.time())
    try:
        # One that has just ended has most likely said why, and that is still to be heard.
        with suppress(ChannelClosedError):
            worker.control.send(assignment.task(ref, sites))
        say(Given(worker.name, sites, delivery, turn))
        failed: set[str] = set()
        while True:
            message = crew.listener.hear(worker, deadline, f"answer its {assignment.kind} task")
            match message:
                case Began(_, site) if site in sites:
                    # Each has as long as if it were alone.
                    at_work, deadline = site, monotonic() + assignment.seconds
                    turn.begun, turn.since = turn.begun + 1, time.time()
                case Received(number, retries) if number == assignment.round:
                    say(Arrived(worker.name, sites, _cost(delivery, retries, began)))
                case Failed(site, _, reason) if site in sites and site not in failed:
                    failed.add(site)
                    say(Lost(site, reason), site)
                case Failed(_, number, reason):
                    raise WorkerLostError(reason, is_stale=number != assignment.round)
                case _ if isinstance(message, answer_type):
                    _check(assignment, message, {*sites} - failed)
                    return message
                case _:
                    raise WorkerLostError(f"it sent {type(message).__name__}, out of turn")
    except WorkerLostError as error:
        error.site = at_work
        raise
    finally:
        ref.abort(f"the {assignment.kind} task of round {assignment.round} is over")


def _check(assignment: Assignment, answer: Trained | Scored, due: set[str]) -> None:
    if answer.round != assignment.round:
        raise WorkerLostError(f"it answered round {answer.round}, which it was not asked for")
    if {each.site for each in answer.sites} != due or len(answer.sites) != len(due):
        raise WorkerLostError("it answered for sites that it was not asked for")


def _cost(delivery: Delivery, retries: int, began: float) -> Transfer:
    return Transfer(
        delivery.bytes, delivery.requests, delivery.chunks, retries, monotonic() - began
    )
