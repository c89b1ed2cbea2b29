"""Pool of a run's workers, each of which is given its tasks by a thread of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

from flstream.debugging import waiting
from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    CheckpointError,
    DeadlineError,
    FlstreamError,
    SimulationError,
    UpdateRefusedError,
    WorkerLostError,
)
from flstream.server.site_queue import SiteBatch, SiteQueue
from flstream.server.worker_handle import WorkerHandle
from flstream.server.worker_monitor import (
    Perform,
    PoolEvent,
    SiteLost,
    WorkerAbandoned,
    WorkerMonitor,
    WorkerReplaced,
)
from flstream.server.worker_supervisor import WorkerSupervisor
from flstream.transport.channel import AbortSignal
from flstream.worker.messages import Stop

REPORT_SECONDS = 0.1
"""Seconds between yields of None, so that the caller can act while nothing happens."""

# Seconds that a killed process may take to be gone.
_END_SECONDS = 10.0

# Failed starts in a row after which a shared worker is abandoned: the next one would fail, too.
_MOST_FAILED_STARTS = 3


Put = Callable[[PoolEvent], None]
"""Function that puts an event where the thread that makes decisions takes it."""


class WorkerPool:
    """Pool of workers.

    A thread for each busy worker exchanges messages with it. All events reach the one thread that
    iterates over :meth:`perform`, and only that thread makes decisions. It may iterate over several
    at a time: a worker does the tasks of one after those of another.

    Args:
        names: Names of the workers.
        own: Whether each worker is a site's own, and has the site's name.
        start: Starts a worker of a name.
        abort: Signal that stops the run.
        ready_seconds: Seconds that a new process may take to become ready.
        has_deadlines: Whether workers have deadlines.

    Attributes:
        monitor: Receives the workers' messages.
    """

    def __init__(
        self,
        names: Sequence[str],
        own: bool,
        start: Callable[[str], WorkerHandle],
        abort: AbortSignal,
        ready_seconds: float,
        *,
        has_deadlines: bool = True,
    ) -> None:
        self._abort = abort
        # What may come at any time, and is of no task.
        self._messages: SimpleQueue[PoolEvent] = SimpleQueue()
        self.monitor = WorkerMonitor(self._messages.put, abort, has_deadlines=has_deadlines)
        self._supervisors = {
            name: WorkerSupervisor(name, own, start, self.monitor, ready_seconds) for name in names
        }
        self._abandoning = threading.Lock()
        # One may wait for sites that a workflow has yet to start, while another does a task.
        self._threads = ThreadPoolExecutor(2 * len(names), thread_name_prefix="worker-pool")

    @property
    def names(self) -> Sequence[str]:
        """Names of the workers that are not abandoned."""
        return [
            name for name, supervisor in self._supervisors.items() if not supervisor.is_abandoned
        ]

    def free_first(self, count: int) -> Sequence[str]:
        """Names of so many workers, those without a task first."""
        busy = {name: each.turn.locked() for name, each in self._supervisors.items()}
        return sorted(self.names, key=busy.__getitem__)[:count]

    def living(self, name: str) -> WorkerHandle | None:
        """A worker's process, if it is ready and lives; any thread may ask."""
        worker = self._supervisors[name].worker
        return worker if worker is not None and worker.lives else None

    def ready(self, name: str) -> WorkerHandle:
        """A worker's process, ready for requests, started if need be. No task may be under way.

        Raises:
            WorkerLostError: It did not become ready.
            AbortedError: The run is being stopped.
        """
        supervisor = self._supervisors[name]
        supervisor.open()
        try:
            return supervisor.ready_worker()
        except WorkerLostError:
            supervisor.drop()
            raise

    def explain(self, error: UpdateRefusedError) -> FlstreamError:
        """Return why a site's update is of no use: its own worker's end, if that is the reason.

        Args:
            error: What was found of the update.
        """
        supervisor = self._supervisors.get(error.site)
        is_gone = isinstance(error.__cause__, ChannelClosedError)
        return supervisor.lose(error) if supervisor is not None and is_gone else error

    def drop(self, name: str) -> None:
        """Kill a worker's process, which is started anew for its next task. None may be under way.

        When this returns, no file is open there any more: another worker may write the same one.

        Args:
            name: Name of the worker.
        """
        worker = self._supervisors[name].worker
        self._supervisors[name].drop()
        if worker is not None:
            worker.exit_code(_END_SECONDS)

    def prepare(self) -> Iterator[PoolEvent | None]:
        """Start all workers, and wait until they are ready.

        Yields:
            Events, and None every :data:`REPORT_SECONDS`. A site whose own worker fails is
            reported as :class:`SiteLost`, a shared worker that fails repeatedly as
            :class:`WorkerAbandoned`.

        Raises:
            SimulationError: No worker became ready.
        """

        def get_ready(supervisor: WorkerSupervisor, put: Put) -> None:
            while not supervisor.is_abandoned and (
                supervisor.worker is None or not supervisor.worker.ready
            ):
                try:
                    supervisor.ready_worker()
                except WorkerLostError as lost:
                    error = supervisor.lose(lost)
                    if not supervisor.own:
                        self._count_failed_start(supervisor, error, put)
                    elif _is_repeatable(supervisor, error):
                        supervisor.lost_in_a_row += 1
                        put(WorkerReplaced(supervisor.name, str(error)))
                    else:
                        put(SiteLost.by(supervisor.name, error))
                        return

        yield from self._together(
            [partial(get_ready, supervisor) for supervisor in self._supervisors.values()]
        )

    def perform(
        self, queue: SiteQueue, execute: Perform, workers: Sequence[str]
    ) -> Iterator[PoolEvent | None]:
        """Execute tasks on workers until the queue of sites is empty.

        Args:
            queue: Queue of the sites.
            execute: Function that executes a task for a batch of sites on a worker.
            workers: Names of the workers to use. If all of them are abandoned, as many others are
                used instead.

        Yields:
            Events, and None every :data:`REPORT_SECONDS`. Each site is either settled by an event
            of ``execute``, or reported as :class:`SiteLost`.

        Raises:
            SimulationError: All workers of the pool were abandoned.
            CheckpointError: An update's file could not be written.
            AbortedError: The run is being stopped.
        """
        work = partial(self._work_through, queue=queue, execute=execute)

        def begin(names: Sequence[str]) -> Iterator[PoolEvent | None]:
            return self._together([partial(work, self._supervisors[name]) for name in names])

        # They begin now, and not when somebody asks for the first event.
        return self._performing(queue, begin, begin(workers), len(workers))

    def _performing(
        self,
        queue: SiteQueue,
        begin: Callable[[Sequence[str]], Iterator[PoolEvent | None]],
        events: Iterator[PoolEvent | None],
        count: int,
    ) -> Iterator[PoolEvent | None]:
        try:
            yield from events
            while queue.is_left and (names := self.names[:count]):
                yield from begin(names)
        finally:
            queue.close()

    def end(self, name: str) -> WorkerHandle | None:
        """Kill a worker, even while it is being started; return the process that was killed."""
        return self._supervisors[name].end()

    def dismiss(self, seconds: float) -> Iterator[PoolEvent | None]:
        """Send every worker :class:`~flstream.worker.messages.Stop`, and wait until it has ended.

        Args:
            seconds: Most seconds to wait for a worker.

        Yields:
            Events, and None every :data:`REPORT_SECONDS`.
        """

        def stop(supervisor: WorkerSupervisor, _: Put) -> None:
            worker, supervisor.worker = supervisor.worker, None
            if worker is None:
                return
            # The launcher kills a process that does not end by itself; the model is final.
            with suppress(FlstreamError):
                worker.control.send(Stop())
                self.monitor.await_goodbye(worker, seconds)
            worker.close()

        yield from self._together(
            [partial(stop, supervisor) for supervisor in self._supervisors.values()]
        )

    def close(self) -> None:
        """Kill all workers, and end the pool's threads."""
        for supervisor in self._supervisors.values():
            supervisor.end()
        self._threads.shutdown()
        for supervisor in self._supervisors.values():
            supervisor.drop()

    def _together(self, tasks: Sequence[Callable[[Put], None]]) -> Iterator[PoolEvent | None]:
        """Run tasks in the pool's threads, and yield events until all tasks are done.

        If a task fails, or the generator is closed early, all workers are killed.
        """
        events: SimpleQueue[PoolEvent] = SimpleQueue()
        for future in [self._threads.submit(task, events.put) for task in tasks]:
            future.add_done_callback(lambda future: events.put(_Ended(future)))
        return self._events_of(events, len(tasks))

    def _events_of(self, events: SimpleQueue[PoolEvent], left: int) -> Iterator[PoolEvent | None]:
        report_at = monotonic() + REPORT_SECONDS
        try:
            while left:
                with suppress(Empty):
                    with waiting():
                        event = events.get(timeout=max(report_at - monotonic(), 0.0))
                    yield from self._messages_so_far()
                    if isinstance(event, _Ended):
                        event.future.result()
                        left -= 1
                    else:
                        yield event
                if monotonic() >= report_at:
                    yield from self._messages_so_far()
                    report_at = monotonic() + REPORT_SECONDS
                    yield None
                    self._check_abort()
            # A thread may have ended because of the signal before this one checked it.
            self._check_abort()
        finally:
            if left:
                for supervisor in self._supervisors.values():
                    supervisor.end()

    def _messages_so_far(self) -> Iterator[PoolEvent]:
        """Take the messages that came before the event that is at hand."""
        with suppress(Empty):
            while True:
                yield self._messages.get_nowait()

    def _check_abort(self) -> None:
        if self._abort.is_set():
            raise AbortedError("the run was stopped")

    def _work_through(
        self, supervisor: WorkerSupervisor, put: Put, *, queue: SiteQueue, execute: Perform
    ) -> None:
        """Execute tasks on one worker until the queue has no more batches for it."""
        try:
            while (
                not supervisor.is_abandoned and (batch := queue.take(supervisor.name)) is not None
            ):
                with supervisor.turn:
                    supervisor.open()
                    if queue.begin(supervisor.name):
                        self._execute(supervisor, queue, batch, execute, put)
            queue.leave(supervisor.name)
        except BaseException:
            # No other thread may wait for the batch that this one has taken.
            queue.close()
            raise

    def _execute(
        self,
        supervisor: WorkerSupervisor,
        queue: SiteQueue,
        batch: SiteBatch,
        execute: Perform,
        put: Put,
    ) -> None:
        """Execute one task on a worker; if the worker is lost, fail its sites or put them back."""
        settled: set[str] = set()
        try:
            worker = supervisor.ready_worker()
        except WorkerLostError as lost:
            error = supervisor.lose(lost)
            if not supervisor.own:
                # The sites have not failed: another worker takes them.
                queue.give_back(batch)
                if not supervisor.is_ending:
                    self._count_failed_start(supervisor, error, put)
            elif _is_repeatable(supervisor, error):
                _repeat(supervisor, queue, batch, error, put)
            else:
                put(SiteLost.by(batch[0], error))
            return

        def report(event: PoolEvent, *sites: str) -> None:
            settled.update(sites)
            put(event)

        try:
            execute(worker, batch, report)
            supervisor.lost_in_a_row = 0
        except (AbortedError, CheckpointError, SimulationError):
            raise  # not the worker's failure
        except FlstreamError as failure:
            error = supervisor.lose(failure)
            left = [site for site in batch if site not in settled]
            if _is_repeatable(supervisor, error):
                _repeat(supervisor, queue, left, error, put)
            else:
                supervisor.lost_in_a_row = 0
                for site in _culprits(queue, batch, left, error):
                    put(SiteLost.by(site, error))

    def _count_failed_start(
        self, supervisor: WorkerSupervisor, error: FlstreamError, put: Put
    ) -> None:
        """Count a failed start, and abandon the worker after :data:`_MOST_FAILED_STARTS`.

        Raises:
            SimulationError: All workers are abandoned.
        """
        supervisor.failed_starts += 1
        if supervisor.failed_starts < _MOST_FAILED_STARTS:
            return
        reason = (
            f"{supervisor.name} did not get ready {supervisor.failed_starts} times in a row: "
            f"{error}; its log is {supervisor.name}.log"
        )
        # Of two threads that abandon the last two workers, one has to notice that none is left.
        with self._abandoning:
            supervisor.is_abandoned = True
            if not self.names:
                raise SimulationError(reason)
        put(WorkerAbandoned(supervisor.name, reason))


def _repeat(
    supervisor: WorkerSupervisor,
    queue: SiteQueue,
    sites: Sequence[str],
    error: FlstreamError,
    put: Put,
) -> None:
    """Put sites back for the worker's replacement."""
    supervisor.lost_in_a_row += 1
    put(WorkerReplaced(supervisor.name, str(error)))
    queue.give_back(sites)


def _culprits(
    queue: SiteQueue, batch: SiteBatch, left: Sequence[str], error: FlstreamError
) -> Sequence[str]:
    """The sites that ended their worker; if they are unknown, all are put back one by one.

    Args:
        queue: Queue of the sites.
        batch: Sites of the task.
        left: Sites of the task that are not settled.
        error: Error that says why the worker was lost.
    """
    culprit = error.site if isinstance(error, WorkerLostError) else None
    if len(batch) == 1:
        return left
    if culprit is not None and culprit in left and isinstance(error.__cause__, DeadlineError):
        queue.give_back([site for site in left if site != culprit])
        return [culprit]
    for site in reversed(left):
        queue.give_back([site])
    return []


def _is_repeatable(supervisor: WorkerSupervisor, error: FlstreamError) -> bool:
    """Whether a worker was lost before it acknowledged its task, so that another can do it."""
    return (
        isinstance(error, WorkerLostError)
        and not error.is_acknowledged
        and not error.has_raised
        and not isinstance(error.__cause__, DeadlineError)
        and not supervisor.is_ending
        and supervisor.may_lose_another()
    )


class _Ended(NamedTuple):
    """The end of a thread's task, put among the events."""

    future: Future[None]
