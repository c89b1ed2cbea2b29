"""The workers of a run, each driven by a thread of the server: hired, given tasks, replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple, Protocol

from flstream.client.messages import Stop
from flstream.errors import (
    AbortedError,
    CheckpointError,
    DeadlineError,
    FlstreamError,
    SimulationError,
    WorkerLostError,
)
from flstream.simulator.crew.batches import Batch, Batches
from flstream.simulator.crew.hiring import Hiring
from flstream.simulator.crew.listening import Listener, Replaced
from flstream.simulator.crew.slot import Slot
from flstream.simulator.crew.worker import Worker
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal

REPORT_SECONDS = 0.1
"""How often whoever listens to the crew gets a turn while nothing is said."""

# How often in a row a worker may fail to get ready: then so will the next.
_MOST_FAILED_STARTS = 3


class Lost(NamedTuple):
    """A site that did not do what it was asked for, and why."""

    site: str
    reason: str


class Retired(NamedTuple):
    """A worker for many sites that is not hired any more, and why; others do its work."""

    worker: str
    reason: str


Said = object
"""What is put before whoever listens: what workers say, what becomes of them, or of a task."""


class Say(Protocol):
    """Puts something before whoever listens, which may settle what becomes of sites."""

    def __call__(self, said: Said, *settled: str) -> None:
        """Say it."""
        ...


Perform = Callable[[Worker, Batch, Say], None]
"""Does a task with a worker, and says what comes of it for each site.

It raises a :class:`~flstream.errors.FlstreamError` if the worker is of no use any more."""


class Crew:
    """Drives the workers.

    A thread for each worker that is busy talks to it; what is to be known comes to the one thread
    that iterates over :meth:`perform`, and only there is anything decided.

    Args:
        names: of the workers.
        own: whether each is a site's own, and has its name.
        hiring: where they come from.
        service: offers models to them.
        abort: raised to stop the run.
        ready_seconds: how long a new worker may take to be ready.
    """

    def __init__(
        self,
        names: Sequence[str],
        own: bool,
        hiring: Hiring,
        service: DownloadService,
        abort: AbortSignal,
        ready_seconds: float,
    ) -> None:
        self._abort = abort
        self._said: SimpleQueue[Said] = SimpleQueue()
        self._listener = Listener(self._said.put, abort)
        self._slots = {
            name: Slot(name, own, hiring, self._listener, service, abort, ready_seconds)
            for name in names
        }
        self._retiring = threading.Lock()
        self._pool = ThreadPoolExecutor(len(names), thread_name_prefix="crew")

    @property
    def names(self) -> Sequence[str]:
        """The names of the workers that there are to do work."""
        return [name for name, slot in self._slots.items() if not slot.is_retired]

    @property
    def listener(self) -> Listener:
        """What hears the workers."""
        return self._listener

    def prepare(self) -> Iterator[Said | None]:
        """Hire all workers, and wait until they are ready.

        Yields:
            What is said, or None now and then. A site whose own worker fails is :class:`Lost`; a
            worker for many that fails again and again is :class:`Retired`.

        Raises:
            SimulationError: no worker could be made ready.
        """

        def get_ready(slot: Slot) -> None:
            while not slot.is_retired and (slot.worker is None or not slot.worker.ready):
                try:
                    slot.ready_worker()
                except WorkerLostError as error:
                    slot.drop()
                    if slot.own:
                        self._said.put(Lost(slot.name, str(error)))
                        return
                    self._count_failed_start(slot, error)

        yield from self._together([partial(get_ready, slot) for slot in self._slots.values()])

    def perform(
        self, batches: Batches, perform: Perform, workers: Sequence[str]
    ) -> Iterator[Said | None]:
        """Have workers deal with sites.

        Args:
            batches: the sites.
            perform: what to do with a worker and the sites it has taken.
            workers: who takes part. If all of them are retired, as many others take their place.

        Yields:
            What is said, or None now and then. Each site is either in something that ``perform``
            says, or :class:`Lost`.

        Raises:
            SimulationError: none of the workers could be made ready, time after time.
            CheckpointError: the disk did not take what was to be kept of an answer.
            AbortedError: the run is being stopped.
        """
        try:
            while workers:
                slots = [self._slots[name] for name in workers]
                for slot in slots:
                    slot.open()
                tasks = [partial(self._drive, slot, batches, perform) for slot in slots]
                yield from self._together(tasks)
                workers = self.names[: len(workers)] if batches.is_left else ()
        finally:
            batches.close()

    def end(self, name: str) -> None:
        """End a worker at once, whatever it is doing, even if it is only being hired."""
        self._slots[name].end()

    def dismiss(self, seconds: float) -> Iterator[Said | None]:
        """Tell every worker that the run is over, and give it ``seconds`` to end."""

        def say_goodbye(slot: Slot) -> None:
            worker, slot.worker = slot.worker, None
            if worker is None:
                return
            # The launcher ends what does not end by itself; the model is final.
            with suppress(FlstreamError):
                worker.control.send(Stop())
                self._listener.await_goodbye(worker, seconds)
            worker.close()

        yield from self._together([partial(say_goodbye, slot) for slot in self._slots.values()])

    def close(self) -> None:
        """End the threads, and every worker that is left."""
        for slot in self._slots.values():
            slot.end()
        self._pool.shutdown()
        for slot in self._slots.values():
            slot.drop()

    def _together(self, tasks: Sequence[Callable[[], None]]) -> Iterator[Said | None]:
        """Have threads do tasks, and give what is said until all are done.

        If one of them fails, or whoever listens has heard enough, all workers are ended.
        """
        futures = [self._pool.submit(task) for task in tasks]
        for future in futures:
            future.add_done_callback(lambda future: self._said.put(_Ended(future)))
        left, report_at = len(futures), monotonic() + REPORT_SECONDS
        try:
            while left:
                with suppress(Empty):
                    said = self._said.get(timeout=max(report_at - monotonic(), 0.0))
                    if isinstance(said, _Ended):
                        left -= 1
                        said.future.result()
                    else:
                        yield said
                if monotonic() >= report_at:
                    report_at = monotonic() + REPORT_SECONDS
                    yield None
                    self._check_abort()
            # A thread may have seen it, and ended, before this one looked.
            self._check_abort()
        finally:
            if left:
                for slot in self._slots.values():
                    slot.end()

    def _check_abort(self) -> None:
        if self._abort.is_set():
            raise AbortedError("the run was stopped")

    def _drive(self, slot: Slot, batches: Batches, perform: Perform) -> None:
        """Deal with batch after batch: the whole life of a thread."""
        try:
            while not slot.is_retired and (batch := batches.take(slot.name)) is not None:
                self._deal(slot, batches, batch, perform)
            batches.leave(slot.name)
        except BaseException:
            # Nobody is to wait for what this thread has taken.
            batches.close()
            raise

    def _deal(self, slot: Slot, batches: Batches, batch: Batch, perform: Perform) -> None:
        done: set[str] = set()
        try:
            worker = slot.ready_worker()
        except WorkerLostError as error:
            slot.drop()
            if slot.own:
                self._said.put(Lost(batch[0], str(error)))
                return
            # It is no fault of the sites'.
            batches.give_back(batch)
            if not slot.is_ending:
                self._count_failed_start(slot, error)
            return
        try:
            perform(worker, batch, partial(self._say, done))
            slot.lost_before_task = 0
        except (AbortedError, CheckpointError, SimulationError):
            raise  # it is not the worker that has failed
        except FlstreamError as error:
            slot.drop()
            left = [site for site in batch if site not in done]
            at_work = error.site if isinstance(error, WorkerLostError) else None
            if isinstance(error, WorkerLostError) and error.is_stale and not slot.lost_before_task:
                # It failed after its last answer, which counts. Another may do better.
                slot.lost_before_task += 1
                self._said.put(Replaced(slot.name, str(error)))
                batches.give_back(left)
            elif len(batch) == 1:
                for site in left:
                    self._said.put(Lost(site, str(error)))
            elif at_work in left and isinstance(error.__cause__, DeadlineError):
                self._said.put(Lost(at_work, str(error)))
                batches.give_back([site for site in left if site != at_work])
            else:
                # Which of them ended it is found out one by one.
                for site in reversed(left):
                    batches.give_back([site])

    def _say(self, done: set[str], said: Said, *settled: str) -> None:
        done.update(settled)
        self._said.put(said)

    def _count_failed_start(self, slot: Slot, error: WorkerLostError) -> None:
        """Hire nobody for a slot any more whose workers fail to get ready again and again.

        Raises:
            SimulationError: that goes for all slots.
        """
        slot.failed_starts += 1
        if slot.failed_starts < _MOST_FAILED_STARTS:
            return
        reason = (
            f"{slot.name} did not get ready {slot.failed_starts} times in a row: {error}; its log "
            f"is {slot.name}.log"
        )
        with self._retiring:  # of two that are the last, one has to see it
            slot.is_retired = True
            if not self.names:
                raise SimulationError(reason)
        self._said.put(Retired(slot.name, reason))


class _Ended(NamedTuple):
    """A thread has no more to say."""

    future: Future[None]
