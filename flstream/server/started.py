"""Trainings that a workflow has started, one a site, and the answers to them as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from flstream.runs.site_states import discard_site_state_after
from flstream.server.pooled_worker import Callback, ReportCallback, SiteLost
from flstream.server.program_view import Model
from flstream.server.run_state import RunState
from flstream.server.simulated_clock import AnswerQueue
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
        # Those that workers are yet to be given, and the tasks of those that they were given.
        self._waiting: deque[SiteTraining] = deque()
        self._runs: dict[str, TaskRun] = {}
        # Sites whose answers have come, in their order; by the virtual clock, that of their times.
        self._over: deque[str] = deque()
        self._simulated = AnswerQueue()
        self._events: Iterator[bool] | None = None

    def add(self, training: SiteTraining) -> None:
        """Add a training, which workers are given once the run is live."""
        (site,) = training.tasks
        self.in_flight[site] = training
        self._state.fleet.start(site)
        self._waiting.append(training)

    def give(self) -> None:
        """Give workers the trainings that they have not been given yet, in order."""
        while self._waiting:
            training = self._waiting.popleft()
            (site,) = training.tasks
            if self.in_flight.get(site) is not training:
                continue  # its answer was on record
            training.oldest = self._state.oldest_effect
            run, plan = self._state.update_store.begin(training, is_read=True)
            if self._events is None:
                self._begin(own=plan.own)
            self._runs[site] = run
            self._expect(training, run)
            self._offer_late(training, run)
            run.leave_out_away()
            if run.collector.is_settled(site):
                self._settle(site)
            else:
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
            tensors, changes = self._state.update_store.late_part(training, site)
            if training.times is not None:
                now = self._state.now
                training.times.arrive_late(site, now, run.spec.late_bytes(tensors, changes))
                self._simulated.begin(training.number, training.times.bound(site))
            run.late_tensors.offer(tensors, changes)

    def _expect(self, training: SiteTraining, run: TaskRun) -> None:
        """Expect the answer of a training, on the virtual clock not before a time."""
        if training.times is None:
            return
        (site,) = training.tasks
        times, number = training.times, training.number
        # One that waits for a model that the program is yet to make comes after what makes it.
        self._simulated.begin(number, None if training.is_waiting else times.bound(site))

        def declare(site: str, units: float) -> None:
            times.declare(site, units)
            if not training.is_waiting:
                self._simulated.begin(number, times.bound(site))

        run.declared = declare

    def _settle(self, site: str) -> None:
        """Take in that a site has answered or failed."""
        training = self.in_flight.get(site)
        if training is None:
            return  # it was cancelled
        if training.times is None:
            self._over.append(site)
        else:
            self._simulated.settle(training.number, training.times.ends[site].time, site)

    def first(self) -> tuple[SiteTraining, TaskRun]:
        """Wait for the next answer, or the next site that has failed, and take it."""
        self.give()
        assert self._events is not None
        state = self._state
        picture, number, waits = state.context.picture, state.round, state.update_store.waits
        picture.begin("training", number, len(self.in_flight), self._activities)
        events = waits.expecting(self._events, "train task", number, lambda: list(self.in_flight))
        while (site := self._next_site()) is None:
            has_moved = next(events)
            picture.emit_snapshot(at_once=not has_moved)
        return self.in_flight[site], self._runs.pop(site)

    def _next_site(self) -> str | None:
        if self._over:
            return self._over.popleft()
        return self._simulated.take()

    def cancel(self) -> None:
        """Cancel what is in flight: the workflow has ended without asking for its answers."""
        in_flight = list(self.in_flight.values())
        for site in list(self.in_flight):
            self.take(site)
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
        self._waiting.clear()
        self._simulated = AnswerQueue()

    def take(self, site: str) -> SiteTraining:
        """Take a training out of those in flight; its site is idle again."""
        self._state.fleet.end(site)
        return self.in_flight.pop(site)

    def close(self) -> None:
        """End the workers' waiting for further trainings, where the run has failed."""
        self._queue.close()

    def _begin(self, *, own: bool) -> None:
        pool = self._state.context.pool
        self._queue = SiteQueue([], own=own, is_open=True)
        self._events = pool.perform(self._queue, self, pool.names)

    def perform(self, worker: WorkerHandle, sites: SiteBatch, report: ReportCallback) -> None:
        """Run the training of a site on a worker; on a pool's thread."""
        (site,) = sites
        run = self._runs[site]

        def settling(callback: Callback, *settled: str) -> None:
            report(partial(self._call, callback, site, run), *settled)

        run.perform(worker, sites, settling)

    def _call(self, callback: Callback, site: str, run: TaskRun) -> None:
        """Let a task take in what has come of it, and note whether its site is settled by that."""
        was_settled = run.collector.is_settled(site)
        callback()
        if not was_settled and run.collector.is_settled(site) and self._runs.get(site) is run:
            self._settle(site)

    def lose(self, lost: SiteLost) -> None:
        """Take in that a site has failed, unless its training was cancelled."""
        run = self._runs.get(lost.site)
        if lost.site in self.in_flight and run is not None:
            self._call(partial(run.lose, lost), lost.site, run)

    def _activities(self) -> list[WorkerActivity]:
        return [activity for run in self._runs.values() for activity in run.activities()]
