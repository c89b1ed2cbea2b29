"""Trainings that a workflow has started, one a site, and the answers to them as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from flstream.runs.site_states import discard_site_state_after
from flstream.server.pooled_worker import ReportCallback, SiteLost
from flstream.server.program_view import Model
from flstream.server.run_state import RunState
from flstream.server.site_queue import SiteBatch, SiteQueue
from flstream.server.task_run import TaskRun
from flstream.server.training import SiteTraining
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import WorkerActivity

# Seconds that a killed process may take to be gone.
_END_SECONDS = 10.0


class StartedTrainings:
    """The trainings in flight: started, and their answers not taken yet.

    Workers go on with them while the workflow does something else; a task of its own waits until
    the workers that it needs have answered.

    Attributes:
        in_flight: The trainings by site, in the order in which they were started.
    """

    def __init__(self, state: RunState) -> None:
        self.in_flight = state.in_flight
        self._state = state
        self._queue = SiteQueue([])
        # Of those trainings that workers have been given.
        self._runs: dict[str, TaskRun] = {}
        self._over: deque[str] = deque()
        self._events: Iterator[bool] | None = None

    def give(self) -> None:
        """Give workers the trainings that they have not been given yet, in order."""
        for site, training in self.in_flight.items():
            if site not in self._runs:
                training.oldest = self._state.oldest_effect
                run, plan = self._state.update_store.begin(training, is_read=True)
                if self._events is None:
                    self._begin(own=plan.own)
                self._runs[site] = run
                self._offer_late(training, run)
                self._queue.put(site)

    def give_late(self, model: Model) -> None:
        """Send tensors of a model that was made to the sites that wait for them."""
        for site, training in self.in_flight.items():
            if training.is_waiting:
                training.late_model = model
                if (run := self._runs.get(site)) is not None:
                    self._offer_late(training, run)

    def _offer_late(self, training: SiteTraining, run: TaskRun) -> None:
        if training.late_model is not None:
            (site,) = training.tasks
            run.late_tensors.offer(*self._state.update_store.late_part(training, site))

    def first(self) -> tuple[SiteTraining, TaskRun]:
        """Wait for the next answer, or the next site that has failed, and take it."""
        self.give()
        assert self._events is not None
        state = self._state
        picture, number, waits = state.context.picture, state.round, state.update_store.waits
        picture.begin("training", number, len(self.in_flight), self._activities)
        events = waits.expecting(self._events, "train task", number, lambda: list(self.in_flight))
        while not self._over:
            has_moved = next(events)
            settled = [site for site, run in self._runs.items() if run.collector.is_settled(site)]
            self._over.extend(site for site in settled if site not in self._over)
            picture.emit_snapshot(at_once=not has_moved)
        site = self._over.popleft()
        return self.in_flight[site], self._runs.pop(site)

    def cancel(self) -> None:
        """Cancel what is in flight: the workflow has ended without asking for its answers."""
        in_flight = list(self.in_flight.values())
        self.in_flight.clear()
        if self._events is None:
            return
        context = self._state.context
        self._queue.close()
        killed = [context.pool.end(worker) for worker in self._queue.taken]
        for _ in self._events:  # until the workers are at rest
            pass
        self._events = None
        for worker in killed:
            if worker is not None:
                worker.exit_code(_END_SECONDS)  # by then no file is open there any more
        for training in in_flight:
            for site, task in training.tasks.items():
                discard_site_state_after(context.run.site(site), training.number - 1, task.state)
        self._runs.clear()
        self._over.clear()

    def close(self) -> None:
        """End the workers' waiting for further trainings, where the run has failed."""
        self._queue.close()

    def _begin(self, *, own: bool) -> None:
        pool = self._state.context.pool
        self._queue = SiteQueue([], own=own, is_open=True)
        self._events = pool.perform(self._queue, self, pool.names)

    def perform(self, worker: WorkerHandle, sites: SiteBatch, report: ReportCallback) -> None:
        """Run the training of a site on a worker; on a pool's thread."""
        self._runs[sites[0]].perform(worker, sites, report)

    def lose(self, lost: SiteLost) -> None:
        """Take in that a site has failed, unless its training was cancelled."""
        if lost.site not in self.in_flight:
            return
        self._runs[lost.site].lose(lost)

    def _activities(self) -> list[WorkerActivity]:
        return [activity for run in self._runs.values() for activity in run.activities()]
