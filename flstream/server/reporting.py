"""Progress of a task and messages of workers, emitted as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from flstream.client.messages import SUBMIT_MODEL, Goodbye, Logged, Ready, TaskKind
from flstream.server.tasks import ModelArrived, TaskGiven
from flstream.server.worker_monitor import WorkerAbandoned, WorkerMessage, WorkerReplaced
from flstream.streaming.refs import Delivery
from flstream.telemetry.events import (
    AnyEvent,
    ProcessEnded,
    ProcessReady,
    Progress,
    SiteLog,
    SitePhaseChanged,
    Transfer,
    Warned,
    WorkerActivity,
)

_Working = Literal["training", "evaluating", "submitting"]
_AT_WORK: dict[TaskKind, _Working] = {
    "train": "training",
    "evaluate": "evaluating",
    "submit_model": "submitting",
}


def report_replaced(
    event: WorkerReplaced | WorkerAbandoned, emit: Callable[[AnyEvent], None]
) -> None:
    """Emit a warning about a worker that was replaced or abandoned without failing a site.

    Args:
        event: The event of the worker pool.
        emit: Function that takes events.
    """
    match event:
        case WorkerReplaced(worker, reason):
            emit(Warned(message=f"{worker} was started again: {reason}"))
        case WorkerAbandoned(_, reason):
            emit(Warned(message=f"{reason}; the other workers go on without it"))


def report_message(event: WorkerMessage, emit: Callable[[AnyEvent], None]) -> None:
    """Emit a worker's message that may arrive at any time.

    Args:
        event: The message, with its worker's name.
        emit: Function that takes events.
    """
    match event.message:
        case Ready(pid, idle_rss, others):
            emit(ProcessReady(process=event.worker, pid=pid, idle_rss=idle_rss, others=others))
        case Logged(number, site, key, value, step, text):
            emit(SiteLog(round=number, site=site, key=key, value=value, step=step, text=text))
        case Goodbye(peak_rss):
            emit(ProcessEnded(process=event.worker, peak_rss=peak_rss))


@dataclass
class _SharedTask:
    """A task that a shared worker executes, for one site after another.

    Attributes:
        given: The task as it was given.
        state: What the worker is doing.
    """

    given: TaskGiven
    state: Literal["downloading"] | _Working

    def activity(self) -> WorkerActivity:
        """Return the worker's activity as an event's record."""
        _, sites, delivery, turn = self.given
        over = min(max(turn.begun - 1, 0), len(sites) - 1)
        return WorkerActivity(self.state, sites[over], over, len(sites), turn.since, delivery.bytes)


class TaskReport:
    """Progress of one task over all workers, emitted as events.

    Args:
        kind: Kind of the task.
        round_number: Number of the task's round, from 1.
        size: Size of the model in bytes.
        emit: Function that takes events.

    Attributes:
        down: Cost of transferring the model to the workers so far.
        arrived_at: Time on the clock of ``time.monotonic()``, in seconds, at which the model last
            arrived at a worker.
    """

    def __init__(
        self, kind: TaskKind, round_number: int, size: int, emit: Callable[[AnyEvent], None]
    ) -> None:
        self._kind = kind
        self._round = round_number
        self._size = size
        self._emit = emit
        self._under_way: dict[str, Delivery] = {}
        self._shared: dict[str, _SharedTask] = {}
        self._worker_of: dict[str, str] = {}
        self._answered = 0
        self.down = Transfer()
        self.arrived_at = monotonic()

    def given(self, given: TaskGiven) -> None:
        """Record that a worker was given its task and is fetching the model."""
        # A task to submit a model comes with none.
        state: Literal["downloading"] | _Working
        state = "submitting" if self._kind == SUBMIT_MODEL else "downloading"
        if given.sites != (given.worker,):
            self._shared[given.worker] = _SharedTask(given, state)
            self._worker_of.update(dict.fromkeys(given.sites, given.worker))
        # A worker is done with many small sites in a moment: an event for each would cost more.
        if len(given.sites) == 1:
            (site,) = given.sites
            self._under_way[site] = given.delivery
            self._emit(SitePhaseChanged(round=self._round, site=site, state=state))

    def arrived(self, arrived: ModelArrived) -> None:
        """Record that the model has arrived at a worker."""
        self.down += arrived.cost
        self.arrived_at = monotonic()
        state = _AT_WORK[self._kind]
        if arrived.worker in self._shared:
            self._shared[arrived.worker].state = state
        if len(arrived.sites) == 1:
            self._emit(SitePhaseChanged(round=self._round, site=arrived.sites[0], state=state))

    def answered(self, site: str) -> None:
        """Record that a site has answered."""
        self._answered += 1
        # A worker sends all answers of a task at once: the first shows that the task is done.
        self._shared.pop(self._worker_of.pop(site, ""), None)
        if self._under_way.pop(site, None) is not None:
            self._emit(SitePhaseChanged(round=self._round, site=site, state="ready"))

    def progress(self) -> None:
        """Emit how far the task is."""
        down = {site: delivery.bytes for site, delivery in self._under_way.items()}
        workers = {name: task.activity() for name, task in self._shared.items()}
        under_way = [each.down for each in workers.values() if each.state == "downloading"]
        self._emit(
            Progress(
                down=down,
                up={},
                size=self._size,
                sent=self.down.bytes + sum(under_way),
                answered=self._answered,
                workers=workers,
            )
        )
