"""The workers of a run, each driven by a thread of the server: hired, given tasks, replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple, Protocol

from flstream.client.messages import Failed, Stop
from flstream.errors import (
    AbortedError,
    CheckpointError,
    DeadlineError,
    FlstreamError,
    SimulationError,
    WorkerLostError,
)
from flstream.simulator.batches import Batch, Batches
from flstream.simulator.hiring import Hiring
from flstream.simulator.listening import Listener, Replaced
from flstream.simulator.worker import Worker
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal

REPORT_SECONDS = 0.1
"""How often whoever listens to the crew gets a turn while nothing is said."""

# How often in a row a worker may fail to get ready.
_MOST_VAIN = 3


class Lost(NamedTuple):
    """A site that did not do what it was asked for, and why."""

    site: str
    reason: str


@dataclass
class Slot:
    """A place for a worker, and who has it now.

    Attributes:
        name: of the worker.
        own: whether it is a site's own.
        worker: who is there; None if it is yet to be hired.
        vain: how many in a row never got ready.
        stale: how many in a row failed before they took up a task.
        ending: whether nobody is wanted there any more.
        lock: for the last three, which two threads look at.
    """

    name: str
    own: bool
    worker: Worker | None = None
    vain: int = 0
    stale: int = 0
    ending: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


Said = object
"""What is put before whoever listens: :class:`Heard`, :class:`Lost`, or what a task makes of it."""


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
        self._slots = {name: Slot(name, own) for name in names}
        self._hiring = hiring
        self._service = service
        self._abort = abort
        self._ready_seconds = ready_seconds
        self._said: SimpleQueue[Said] = SimpleQueue()
        self._listener = Listener(self._said.put, abort)
        self._pool = ThreadPoolExecutor(len(names), thread_name_prefix="crew")

    @property
    def names(self) -> Sequence[str]:
        """The workers' names."""
        return list(self._slots)

    @property
    def listener(self) -> Listener:
        """What hears the workers."""
        return self._listener

    def prepare(self) -> Iterator[Said | None]:
        """Hire all workers, and wait until they are ready.

        Yields:
            What is said, or None now and then. A site whose own worker fails is :class:`Lost`.

        Raises:
            SimulationError: a worker for many sites could not be made ready.
        """

        def get_ready(slot: Slot) -> None:
            while slot.worker is None or not slot.worker.ready:
                try:
                    self._ready_worker(slot)
                except WorkerLostError as error:
                    self._drop(slot)
                    if slot.own:
                        self._said.put(Lost(slot.name, str(error)))
                        return
                    _check_vain(slot, error)

        yield from self._together([partial(get_ready, slot) for slot in self._slots.values()])

    def perform(
        self, batches: Batches, perform: Perform, workers: Sequence[str]
    ) -> Iterator[Said | None]:
        """Have workers deal with sites.

        Args:
            batches: the sites.
            perform: what to do with a worker and the sites it has taken.
            workers: who takes part.

        Yields:
            What is said, or None now and then. Each site is either in something that ``perform``
            says, or :class:`Lost`.

        Raises:
            SimulationError: workers could not be made ready, time after time.
            CheckpointError: the disk did not take what was to be kept of an answer.
            AbortedError: the run is being stopped.
        """
        for name in workers:
            self._slots[name].ending = False
        tasks = [partial(self._drive, self._slots[name], batches, perform) for name in workers]
        try:
            yield from self._together(tasks)
        finally:
            batches.close()

    def end(self, name: str) -> None:
        """End a worker at once, whatever it is doing, even if it is only being hired."""
        slot = self._slots[name]
        with slot.lock:
            slot.ending = True
            if slot.worker is not None:
                slot.worker.kill()

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
        for name in self._slots:
            self.end(name)
        self._pool.shutdown()
        for slot in self._slots.values():
            self._drop(slot)

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
                for name in self._slots:
                    self.end(name)

    def _check_abort(self) -> None:
        if self._abort.is_set():
            raise AbortedError("the run was stopped")

    def _drive(self, slot: Slot, batches: Batches, perform: Perform) -> None:
        """Deal with batch after batch: the whole life of a thread."""
        try:
            while (batch := batches.take(slot.name)) is not None:
                self._deal(slot, batches, batch, perform)
        except BaseException:
            # Nobody is to wait for what this thread has taken.
            batches.close()
            raise

    def _deal(self, slot: Slot, batches: Batches, batch: Batch, perform: Perform) -> None:
        done: set[str] = set()
        try:
            worker = self._ready_worker(slot)
        except WorkerLostError as error:
            self._drop(slot)
            if slot.own:
                self._said.put(Lost(batch[0], str(error)))
                return
            # It is no fault of the sites'.
            batches.give_back(batch)
            if not slot.ending:
                _check_vain(slot, error)
            return
        try:
            perform(worker, batch, partial(self._say, done))
            slot.stale = 0
        except (AbortedError, CheckpointError, SimulationError):
            raise  # it is not the worker that has failed
        except FlstreamError as error:
            self._drop(slot)
            left = [site for site in batch if site not in done]
            at_work = error.site if isinstance(error, WorkerLostError) else None
            if isinstance(error, WorkerLostError) and error.is_stale and not slot.stale:
                # It failed after its last answer, which counts. Another may do better.
                slot.stale += 1
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

    def _ready_worker(self, slot: Slot) -> Worker:
        """The worker of a slot, ready for a task: the one that is there, or a new one.

        Raises:
            WorkerLostError: the new one did not get ready.
        """
        if slot.worker is not None and not self._listener.is_fit(slot.worker):
            self._drop(slot)
        if slot.worker is None:
            hired = self._hiring.hire(slot.name, self._abort)
            with slot.lock:
                slot.worker = Worker(slot.name, hired, self._service, self._abort)
        with slot.lock:
            worker = slot.worker
            assert worker is not None
            if slot.ending:
                worker.kill()
                raise WorkerLostError("it is no longer wanted")
        deadline = monotonic() + self._ready_seconds
        while not worker.ready:
            message = self._listener.hear(worker, deadline, "call init()")
            if isinstance(message, Failed):
                raise WorkerLostError(message.reason)
        slot.vain = 0
        return worker

    def _drop(self, slot: Slot) -> None:
        with slot.lock:
            worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.kill()
            worker.close()


class _Ended(NamedTuple):
    """A thread has no more to say."""

    future: Future[None]


def _check_vain(slot: Slot, error: WorkerLostError) -> None:
    """Give up if a worker fails to get ready again and again: then so will the next."""
    slot.vain += 1
    if slot.vain >= _MOST_VAIN:
        raise SimulationError(
            f"{slot.name} did not get ready {slot.vain} times in a row: {error}; its log is "
            f"{slot.name}.log"
        )
