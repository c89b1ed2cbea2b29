"""Pool of a run's workers, each of which is given its tasks by a thread of the server."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

from flstream.debugging import waiting
from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    FlstreamError,
    SimulationError,
    UpdateRefusedError,
    WorkerLostError,
)
from flstream.server.collector import SiteLost
from flstream.server.pooled_worker import Callback, PooledWorker, PoolTask, Put
from flstream.server.site_queue import SiteQueue
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import Emit, Warned
from flstream.transport.channel import AbortSignal

REPORT_SECONDS = 0.1
"""Seconds between yields of False, so that the caller can act while nothing happens."""

# Seconds that a killed process may take to be gone.
_END_SECONDS = 10.0


class WorkerPool:
    """Pool of workers.

    A thread for each busy worker exchanges messages with it. What comes of tasks reaches the one
    thread that iterates over :meth:`perform`, and only that thread makes decisions. It may iterate
    over several at a time: a worker does the tasks of one after those of another.

    Args:
        names: Names of the workers.
        own: Whether each worker is a site's own, and has the site's name.
        start: Starts a worker of a name.
        abort: Signal that stops the run.
        ready_seconds: Seconds that a new process may take to become ready.
        emit: Takes events of the run.
        gives_again: Whether a task is given again whose process was lost while it had it.
    """

    def __init__(
        self,
        names: Sequence[str],
        own: bool,
        start: Callable[[str], WorkerHandle],
        abort: AbortSignal,
        ready_seconds: float,
        emit: Emit,
        *,
        gives_again: bool = False,
    ) -> None:
        self._abort = abort
        self._emit = emit
        fewer = f", set clients.parallel below {len(names)}" if len(names) > 1 else ""
        remedy = f"{fewer}, or keep the model in a file (flare.receive(file=...))"
        self._workers = {
            name: PooledWorker(name, own, start, ready_seconds, emit, remedy, gives_again)
            for name in names
        }
        # One may wait for sites that a workflow has yet to start, while another does a task.
        self._threads = ThreadPoolExecutor(2 * len(names), thread_name_prefix="worker-pool")

    @property
    def names(self) -> Sequence[str]:
        """Names of the workers that are not abandoned."""
        return [name for name, worker in self._workers.items() if not worker.abandoned]

    def free_first(self, count: int) -> Sequence[str]:
        """Names of so many workers, those without a task first."""
        busy = {name: worker.turn.locked() for name, worker in self._workers.items()}
        return sorted(self.names, key=busy.__getitem__)[:count]

    def living(self, name: str) -> WorkerHandle | None:
        """A worker's process, if it is ready and lives; any thread may ask."""
        handle = self._workers[name].handle
        return handle if handle is not None and handle.lives else None

    def ready(self, name: str) -> WorkerHandle:
        """A worker's process, ready for requests, started if need be. No task may be under way.

        Raises:
            WorkerLostError: It did not become ready.
            AbortedError: The run is being stopped.
        """
        worker = self._workers[name]
        worker.open()
        try:
            return worker.ready_handle()
        except WorkerLostError:
            worker.drop()
            raise

    def explain(self, error: UpdateRefusedError) -> FlstreamError:
        """Return why a site's update is of no use: its own worker's end, if that is the reason.

        Args:
            error: What was found of the update.
        """
        worker = self._workers.get(error.site)
        is_gone = isinstance(error.__cause__, ChannelClosedError)
        return worker.lose(error) if worker is not None and is_gone else error

    def drop(self, name: str) -> None:
        """Kill a worker's process, which is started anew for its next task. None may be under way.

        When this returns, no file is open there any more: another worker may write the same one.

        Args:
            name: Name of the worker.
        """
        worker = self._workers[name]
        handle = worker.handle
        worker.drop()
        if handle is not None:
            handle.exit_code(_END_SECONDS)

    def prepare(self, lose: Callable[[SiteLost], None]) -> Generator[bool]:
        """Start all workers, at once; the generator ends when they are ready.

        Args:
            lose: Takes in that a site's own worker has failed.

        Raises:
            SimulationError: No worker became ready.
        """

        def prepare(worker: PooledWorker, put: Put) -> None:
            worker.prepare(put, lose)
            self._expect_others(worker)

        return self._together([partial(prepare, worker) for worker in self._workers.values()])

    def perform(self, queue: SiteQueue, task: PoolTask, workers: Sequence[str]) -> Generator[bool]:
        """Perform a task on workers until the queue of sites is empty.

        Args:
            queue: Queue of the sites.
            task: The task. What it reports is called on the thread that iterates.
            workers: Names of the workers to use. If all of them are abandoned, as many others are
                used instead.

        Yields:
            True after each event, and False every :data:`REPORT_SECONDS`. Each site is either
            settled by what the task reports, or lost. Whoever goes on no more closes it, which
            kills workers that are at work.

        Raises:
            SimulationError: All workers of the pool were abandoned.
            CheckpointError: An update's file could not be written.
            AbortedError: The run is being stopped.
        """
        work = partial(self._work_through, queue=queue, task=task)

        def begin(names: Sequence[str]) -> Generator[bool]:
            return self._together([partial(work, self._workers[name]) for name in names])

        # They begin now, and not when somebody asks for the first event.
        return self._performing(queue, begin, begin(workers), len(workers))

    def _performing(
        self,
        queue: SiteQueue,
        begin: Callable[[Sequence[str]], Generator[bool]],
        events: Generator[bool],
        count: int,
    ) -> Generator[bool]:
        try:
            yield from events
            while queue.is_left and (names := self.names[:count]):
                yield from begin(names)
        finally:
            queue.close()

    def end(self, name: str) -> WorkerHandle | None:
        """Kill a worker, even while it is being started; return the process that was killed."""
        return self._workers[name].end()

    def dismiss(self, seconds: float) -> None:
        """Send every worker :class:`~flstream.worker.messages.Stop`, and wait until it has ended.

        Args:
            seconds: Most seconds to wait for a worker.

        Raises:
            AbortedError: The run is being stopped.
        """

        def stop(worker: PooledWorker, _: Put) -> None:
            worker.stop(seconds)

        for _ in self._together([partial(stop, worker) for worker in self._workers.values()]):
            pass

    def close(self) -> None:
        """Kill all workers, and end the pool's threads."""
        for worker in self._workers.values():
            worker.end()
        self._threads.shutdown()
        for worker in self._workers.values():
            worker.drop()

    def _together(self, tasks: Sequence[Callable[[Put], None]]) -> Generator[bool]:
        """Run tasks in the pool's threads, and yield after callbacks until all tasks are done.

        If a task or a callback fails, or the generator is closed early, all workers are killed.
        """
        queue: SimpleQueue[Callback | Future[None]] = SimpleQueue()
        for future in [self._threads.submit(task, queue.put) for task in tasks]:
            future.add_done_callback(queue.put)
        return self._taking(queue, len(tasks))

    def _taking(self, queue: SimpleQueue[Callback | Future[None]], running: int) -> Generator[bool]:
        report_at = monotonic() + REPORT_SECONDS
        try:
            while running:
                items = list[Callback | Future[None]]()
                with suppress(Empty), waiting():
                    items.append(queue.get(timeout=max(report_at - monotonic(), 0.0)))
                # What else has come by now counts as one event with it, which costs less.
                items += [queue.get() for _ in range(queue.qsize())]
                for item in items:
                    if isinstance(item, Future):
                        item.result()
                        running -= 1
                    else:
                        item()
                if items:
                    yield True
                if monotonic() >= report_at:
                    report_at = monotonic() + REPORT_SECONDS
                    yield False
                    self._check_abort()
            # A thread may have ended because of the signal before this one checked it.
            self._check_abort()
        finally:
            if running:
                for worker in self._workers.values():
                    worker.end()

    def _check_abort(self) -> None:
        if self._abort.is_set():
            raise AbortedError("the run was stopped")

    def _work_through(
        self, worker: PooledWorker, put: Put, *, queue: SiteQueue, task: PoolTask
    ) -> None:
        """Perform a task on one worker until the queue has no more batches for it."""
        try:
            while not worker.abandoned and (batch := queue.take(worker.name)) is not None:
                with worker.turn:
                    worker.open()
                    if queue.begin(worker.name):
                        worker.do(queue, batch, task, put)
                        self._expect_others(worker)
            queue.leave(worker.name)
        except BaseException:
            # No other thread may wait for the batch that this one has taken.
            queue.close()
            raise

    def _expect_others(self, worker: PooledWorker) -> None:
        """Make sure that there are others to go on with, if a worker was abandoned."""
        if worker.abandoned:
            if not self.names:
                raise SimulationError(worker.abandoned)
            self._emit(Warned(message=f"{worker.abandoned}; the other workers go on without it"))
