"""Trainings that a workflow has started, one a site, and the answers to them as they come."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from flstream.runs.site_states import discard_site_state_after
from flstream.server.collector import SiteLost
from flstream.server.pooled_worker import Callback, ReportCallback
from flstream.server.program_view import Model
from flstream.server.simulated_clock import AnswerQueue
from flstream.server.site_queue import SiteBatch, SiteQueue
from flstream.server.task_run import TaskRun
from flstream.server.training import SiteTraining
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import WorkerActivity

if TYPE_CHECKING:
    from flstream.server.run_state import RunState

# Seconds that a killed process may take to be gone.
_END_SECONDS = 10.0


class SmallTrainings(NamedTuple):
    """Small trainings alike that workers are to have, several in one task.

    Attributes:
        most: How many a worker need not wait for others with.
        bytes_down: Bytes of the model that each site is sent.
        trainings: Those that were started.
    """

    most: int
    bytes_down: int
    trainings: list[SiteTraining]


class StartedTrainings:
    """The trainings in flight: started, and their answers not taken yet.

    Workers go on with them while the workflow does something else; a task of its own waits until
    the workers that it needs have answered.
    """

    def __init__(self, state: RunState) -> None:
        self._in_flight = state.in_flight
        self._state = state
        self._queue = SiteQueue([])
        # Those that workers are yet to be given: new ones, and small ones that travel together.
        self._waiting: deque[SiteTraining] = deque()
        # Those whose late tensors are of a model that is not made yet.
        self._for_late: list[SiteTraining] = []
        self._small: dict[object, SmallTrainings] = {}
        # The tasks of those that they were given, and the sites that have not answered yet.
        self._runs: dict[str, TaskRun] = {}
        self._open: set[str] = set()
        # Tasks of small trainings that workers have: one that is free gets what has come up since.
        self._at_work: set[TaskRun] = set()
        # Sites that are over before the late tensors are there which decide when they were.
        self._early: set[str] = set()
        # Sites whose answers have come, in their order; by the virtual clock, that of their times.
        self._over: deque[str] = deque()
        self._simulated = AnswerQueue()
        self._events: Iterator[bool] | None = None

    def add(self, training: SiteTraining) -> None:
        """Add a training, which workers are given once the run is live."""
        (site,) = training.tasks
        self._in_flight[site] = training
        self._state.fleet.start(site)
        self._waiting.append(training)
        if training.is_waiting:
            self._for_late.append(training)

    def give(self, *, at_once: bool = True) -> None:
        """Give workers the trainings that they have not been given yet.

        On the virtual clock, small ones are given together.

        Args:
            at_once: Whether a worker that is free gets those that there are.
        """
        tasks = self._state.tasks
        while self._waiting:
            training = self._waiting.popleft()
            (site,) = training.tasks
            if self._in_flight.get(site) is not training:
                continue  # its answer was on record
            training.oldest = self._state.oldest_effect
            alike = training.base.version, training.round, training.meta, training.seconds
            group = self._small.get(alike)
            if group is None or training.parts is not None:
                most = tasks.small_batch(training, len(self._in_flight))
                if not most:
                    run, plan = tasks.begin(training, is_read=True)
                    self._expect(training)
                    self._hand_out([training], run, own=plan.has_own_workers)
                    continue
                group = self._small[alike] = SmallTrainings(most, tasks.bytes_down(training), [])
            if training.clocks:
                training.clocks[site].arrive(group.bytes_down)
                self._expect(training)
            group.trainings.append(training)
            is_full = len(group.trainings) >= group.most
            if not training.clocks or (is_full and self._has_free_worker):
                self._hand_out_small(alike)
        while at_once and self._small and self._has_free_worker:
            self._hand_out_small(next(iter(self._small)))

    @property
    def _has_free_worker(self) -> bool:
        """Whether there is a worker without a task of small trainings."""
        return len(self._at_work) < max(len(self._state.context.pool.names), 1)

    def _hand_out_small(self, alike: object) -> None:
        """Give a worker small trainings that are alike, those that have waited longest."""
        tasks, waiting = self._state.tasks, self._small[alike].trainings
        most = tasks.small_batch(waiting[0], len(self._in_flight))
        group, self._small[alike].trainings[:] = waiting[:most], waiting[most:]
        if not waiting:
            del self._small[alike]
        run = tasks.begin_small(group)
        self._at_work.add(run)
        self._hand_out(group, run, own=False)

    def _hand_out(self, group: Sequence[SiteTraining], run: TaskRun, *, own: bool) -> None:
        """Give a worker trainings as one task, without those whose sites never train."""
        self._state.retire_models()
        if self._events is None:
            self._begin(own=own)
        sites = tuple(site for training in group for site in training.tasks)
        run.declared = self._declare
        self._runs |= dict.fromkeys(sites, run)
        self._open.update(sites)
        for training in group:
            self._offer_late(training, run)
        run.leave_out_away()
        self._note_settled(sites, run)
        if waiting := tuple(site for site in sites if site in self._open):
            self._queue.put(waiting)

    def give_late(self, model: Model) -> None:
        """Send tensors of a model that was made to the sites that wait for them."""
        waiting, self._for_late = self._for_late, []
        for training in waiting:
            (site,) = training.tasks
            if self._in_flight.get(site) is training:
                training.late_model = model
                if (run := self._runs.get(site)) is not None:
                    self._offer_late(training, run)

    def _offer_late(self, training: SiteTraining, run: TaskRun) -> None:
        if training.late_model is None:
            return
        (site,) = training.tasks
        tensors, changes = self._state.tasks.late_part(training, site)
        if training.clocks:
            now = self._state.now
            training.clocks[site].arrive_late(now, run.spec.late_bytes(tensors, changes))
        if site in self._open:
            self._expect(training)
            if run.late_tensors is not None:
                run.late_tensors.offer(tensors, changes)
        elif site in self._early:
            self._early.discard(site)
            self._settle(site)

    def _expect(self, training: SiteTraining) -> None:
        """Expect the answer of a training, on the virtual clock not before a time."""
        if training.clocks:
            (site,) = training.tasks
            # One that waits for a model that the program is yet to make comes after what makes it.
            bound = None if training.is_waiting else training.clocks[site].earliest()
            self._simulated.begin(training.number, bound)

    def _declare(self, site: str, units: float) -> None:
        """Record how much work a site has declared, and so when it answers at the earliest."""
        training = self._in_flight.get(site)
        if training is not None and training.clocks:
            training.clocks[site].declare(units)
            self._expect(training)

    def _settle(self, site: str) -> None:
        """Record that a site has answered or failed."""
        training = self._in_flight[site]
        if not training.clocks:
            self._over.append(site)
            return
        end = training.clocks[site].end
        assert end is not None
        if training.is_waiting and not end.is_absence:
            self._early.add(site)
        else:
            self._simulated.settle(training.number, end.time, site)

    def first(self, limit: float = math.inf) -> tuple[SiteTraining, TaskRun] | None:
        """Wait for the next answer, or the next site that has failed, and take it.

        Args:
            limit: Time after which not to wait: nanoseconds since the run began by the virtual
                clock, or seconds by the machine's monotonic one.

        Returns:
            Its training and task; None where none has come by then.
        """
        self.give(at_once=False)
        site = self._next_site(limit)
        if site is None and not (self._state.clock is not None and self._is_over(limit)):
            self.give()
            site = self._await_next(limit)
        return None if site is None else (self._in_flight[site], self._runs.pop(site))

    def _await_next(self, limit: float) -> str | None:
        assert self._events is not None
        state = self._state
        picture, number, waits = state.context.picture, state.round, state.tasks.waits
        picture.begin("training", number, len(self._in_flight), self._activities)
        events = waits.expecting(self._events, "train task", number, lambda: list(self._in_flight))
        is_over = False
        while (site := self._next_site(limit)) is None and not is_over:
            self.give()
            has_moved = next(events)
            picture.emit_snapshot(at_once=not has_moved)
            is_over = self._is_over(limit)
        return site

    def _next_site(self, limit: float) -> str | None:
        if self._over:
            return self._over.popleft()
        return self._simulated.take(limit)

    def _is_over(self, limit: float) -> bool:
        """Whether it is too late to wait on: no answer can come up to a time, or it is past."""
        if self._state.clock is not None:
            return self._simulated.is_over(limit)
        # Inline, sites wait for each other.
        return time.monotonic() >= limit and not self._state.context.job.engine.is_inline

    def cancel(self) -> None:
        """Cancel what is in flight: the workflow has ended without asking for its answers."""
        in_flight = list(self._in_flight.values())
        self._open.clear()
        for site in list(self._in_flight):
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
        self._early.clear()
        self._waiting.clear()
        self._for_late.clear()
        self._small.clear()
        self._at_work.clear()
        self._simulated = AnswerQueue()

    def take(self, site: str) -> SiteTraining:
        """Take a training out of those in flight; its site is idle again."""
        self._state.fleet.end(site)
        return self._in_flight.pop(site)

    def close(self) -> None:
        """End the workers' waiting for further trainings, where the run has failed."""
        self._queue.close()

    def _begin(self, *, own: bool) -> None:
        pool = self._state.context.pool
        self._queue = SiteQueue([], own=own, is_open=True)
        self._events = pool.perform(self._queue, self, pool.names)

    def perform(self, worker: WorkerHandle, sites: SiteBatch, report: ReportCallback) -> None:
        """Run the trainings of sites on a worker; on a pool's thread."""
        run = self._runs[sites[0]]

        def settling(callback: Callback, *settled: str) -> None:
            report(partial(self._call, callback, settled, run), *settled)

        run.perform(worker, sites, settling)

    def _call(self, callback: Callback, sites: Sequence[str], run: TaskRun) -> None:
        """Call back a task, and note the sites that are settled by that."""
        callback()
        self._note_settled(sites, run)

    def _note_settled(self, sites: Sequence[str], run: TaskRun) -> None:
        for site in sites:
            is_open = site in self._open and self._runs.get(site) is run
            if is_open and run.collector.is_settled(site):
                self._open.discard(site)
                self._settle(site)
        if run.collector.settled == len(run.collector.cohort):
            self._at_work.discard(run)

    def lose(self, lost: SiteLost) -> None:
        """Record that a site has failed, unless its training was cancelled."""
        run = self._runs.get(lost.site)
        if lost.site in self._in_flight and run is not None:
            self._call(partial(run.lose, lost), (lost.site,), run)

    def _activities(self) -> list[WorkerActivity]:
        runs = dict.fromkeys(self._runs.values())
        return [activity for run in runs for activity in run.activities()]
