"""Progress of a task, emitted as events."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, time
from typing import Literal

from flstream.server.context import ServerContext
from flstream.server.tasks import ModelArrived, TaskGiven
from flstream.telemetry.events import (
    SitePhaseChanged,
    Transfer,
    WorkerActivity,
)
from flstream.worker.messages import SUBMIT_MODEL, TaskKind

_Working = Literal["training", "evaluating", "submitting"]
_AT_WORK: dict[TaskKind, _Working] = {
    "train": "training",
    "evaluate": "evaluating",
    "submit_model": "submitting",
}


@dataclass
class _GivenTask:
    """A task that a worker executes, for one site after another.

    Attributes:
        given: The task as it was given.
        state: State of the worker.
        since: Time at which it entered that state, in seconds since the epoch.
        failures: Number of its sites that have failed.
    """

    given: TaskGiven
    state: Literal["downloading", "ready"] | _Working
    since: float
    failures: int = 0

    def activity(self) -> WorkerActivity:
        """Return the worker's activity as a snapshot's record."""
        worker, sites, delivery, turn = self.given
        is_own = sites == (worker,)
        over = 0 if is_own else min(max(turn.begun - 1, 0), len(sites) - 1)
        site = "" if is_own else sites[over]
        since, done = max(self.since, turn.since), max(over - self.failures, 0)
        return WorkerActivity(worker, self.state, since, site, done, len(sites), delivery.bytes)


class TaskReport:
    """Progress of one task over all workers, emitted as events and shown in the live picture.

    Args:
        kind: Kind of the task.
        round_number: Number of the task's round, from 1.
        context: The server.

    Attributes:
        down: Cost of transferring the model to the workers so far.
        arrived_at: Time on the clock of ``time.monotonic()``, in seconds, at which the model last
            arrived at a worker.
    """

    def __init__(self, kind: TaskKind, round_number: int, context: ServerContext) -> None:
        self._kind = kind
        self._round = round_number
        self._emit = context.emit
        self._picture = context.picture
        self._tasks: dict[str, _GivenTask] = {}
        self._worker_of: dict[str, str] = {}
        self.down = Transfer()
        self.arrived_at = monotonic()

    def begin(self, asked: int) -> None:
        """Record that the task begins, for a number of sites."""
        self._picture.begin(_AT_WORK[self._kind], self._round, asked, self.activities)

    def activities(self) -> list[WorkerActivity]:
        """What the workers do that have the task."""
        return [task.activity() for task in self._tasks.values()]

    def given(self, given: TaskGiven) -> None:
        """Record that a worker was given its task and is fetching the model."""
        # A task to submit a model comes with none.
        state: Literal["downloading"] | _Working
        state = "submitting" if self._kind == SUBMIT_MODEL else "downloading"
        self._tasks[given.worker] = _GivenTask(given, state, time())
        self._worker_of.update(dict.fromkeys(given.sites, given.worker))
        # A worker is done with many small sites in a moment: an event for each would cost more.
        if len(given.sites) == 1:
            self._emit(SitePhaseChanged(round=self._round, site=given.sites[0], state=state))

    def arrived(self, arrived: ModelArrived) -> None:
        """Record that the model has arrived at a worker."""
        self.down += arrived.cost
        self.arrived_at = monotonic()
        self._picture.arrived(arrived.cost.bytes)
        state = _AT_WORK[self._kind]
        if task := self._tasks.get(arrived.worker):
            task.state, task.since = state, time()
        if len(arrived.sites) == 1:
            self._emit(SitePhaseChanged(round=self._round, site=arrived.sites[0], state=state))

    def answered(self, site: str, fetched: int) -> None:
        """Record that a site has answered, and the bytes of its update that were fetched."""
        self._picture.answered(fetched)
        task = self._task_of(site)
        if task is None:
            return
        if task.given.sites == (task.given.worker,):
            task.state, task.since = "ready", time()
        else:
            # A worker sends all answers of a task at once: the first shows that the task is done.
            self._tasks.pop(task.given.worker, None)
        if len(task.given.sites) == 1:
            self._emit(SitePhaseChanged(round=self._round, site=site, state="ready"))

    def failed(self, site: str) -> None:
        """Record that a site has failed."""
        self._picture.failed()
        task = self._task_of(site)
        if task is not None and len(task.given.sites) == 1:
            self._tasks.pop(task.given.worker, None)
        elif task is not None:
            task.failures += 1

    def lost(self, worker: str) -> None:
        """Record that a worker is lost, whose sites others are given."""
        self._tasks.pop(worker, None)

    def progress(self, *, at_once: bool = False) -> None:
        """Show how far the task is, now and then."""
        self._picture.emit_snapshot(at_once=at_once)

    def _task_of(self, site: str) -> _GivenTask | None:
        return self._tasks.get(self._worker_of.pop(site, ""))
