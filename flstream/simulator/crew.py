"""The workers of a run, each driven by a thread of the server: hired, given tasks, replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple, Protocol

from flstream.client.messages import Failed, FromWorker, Goodbye, Logged, Ready, Stop
from flstream.errors import AbortedError, DeadlineError, FlstreamError, WorkerLostError
from flstream.simulator.batches import Batch, Batches
from flstream.simulator.hiring import Hiring
from flstream.simulator.worker import Worker
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal

REPORT_SECONDS = 0.1
"""How often whoever listens to the crew gets a turn while nothing is said."""

# What is said when a thread has no more to say.
_ENDED = object()
# How long a worker whose code has failed may take to end.
_END_SECONDS = 5.0


class Heard(NamedTuple):
    """Something a worker said that can be said at any time."""

    worker: str
    message: Ready | Logged | Goodbye


class Lost(NamedTuple):
    """A site that did not do what it was asked for, and why."""

    site: str
    reason: str


@dataclass
class Slot:
    """A place for a worker, and who has it now."""

    name: str
    worker: Worker | None = None


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
        hiring: where they come from.
        service: offers models to them.
        abort: raised to stop the run.
        ready_seconds: how long a new worker may take to be ready.
    """

    def __init__(
        self,
        names: Sequence[str],
        hiring: Hiring,
        service: DownloadService,
        abort: AbortSignal,
        ready_seconds: float,
    ) -> None:
        self._slots = {name: Slot(name) for name in names}
        self._hiring = hiring
        self._service = service
        self._abort = abort
        self._ready_seconds = ready_seconds
        self._said: SimpleQueue[Said] = SimpleQueue()
        self._pool = ThreadPoolExecutor(len(names), thread_name_prefix="crew")

    @property
    def names(self) -> Sequence[str]:
        """The workers' names."""
        return list(self._slots)

    def prepare(self, names: Sequence[str]) -> Iterator[Said | None]:
        """Hire workers, and wait until they are ready.

        Yields:
            What is said, or None now and then. A worker that fails is :class:`Lost` by its name.
        """

        def get_ready(slot: Slot) -> None:
            try:
                self._ready_worker(slot)
            except AbortedError:
                return
            except FlstreamError as error:
                self._drop(slot)
                self._said.put(Lost(slot.name, str(error)))

        yield from self._listen([self._pool.submit(get_ready, self._slots[n]) for n in names])

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
        """
        futures = [
            self._pool.submit(self._drive, self._slots[n], batches, perform) for n in workers
        ]
        try:
            yield from self._listen(futures)
        finally:
            batches.close()
            if not all(future.done() for future in futures):
                for name in workers:
                    self.end(name)
            for future in futures:
                future.result()

    def end(self, name: str) -> None:
        """End a worker at once, whatever it is doing."""
        worker = self._slots[name].worker
        if worker is not None:
            worker.kill()

    def dismiss(self, seconds: float) -> Iterator[Said | None]:
        """Tell every worker that the run is over, and give it ``seconds`` to end."""

        def say_goodbye(slot: Slot) -> None:
            worker, slot.worker = slot.worker, None
            if worker is None:
                return
            try:
                worker.control.send(Stop())
                self._await_goodbye(worker, seconds)
            except FlstreamError:
                pass  # the launcher ends what does not end by itself; the model is final
            worker.close()

        yield from self._listen([self._pool.submit(say_goodbye, s) for s in self._slots.values()])

    def close(self) -> None:
        """End the threads, and every worker that is left."""
        for slot in self._slots.values():
            self._drop(slot)
        self._pool.shutdown()

    def _listen(self, futures: Sequence[Future[None]]) -> Iterator[Said | None]:
        for future in futures:
            future.add_done_callback(lambda _: self._said.put(_ENDED))
        left, report_at = len(futures), monotonic() + REPORT_SECONDS
        while left:
            with suppress(Empty):
                said = self._said.get(timeout=max(report_at - monotonic(), 0.0))
                if said is _ENDED:
                    left -= 1
                else:
                    yield said
            if monotonic() >= report_at:
                report_at = monotonic() + REPORT_SECONDS
                yield None
                if self._abort.is_set():
                    raise AbortedError("the run was stopped")
        for future in futures:
            future.result()

    def _drive(self, slot: Slot, batches: Batches, perform: Perform) -> None:
        """Deal with batch after batch: the whole life of a thread."""
        while (batch := batches.take(slot.name)) is not None:
            done: set[str] = set()
            try:
                perform(self._ready_worker(slot), batch, partial(self._say, done))
            except AbortedError:
                return
            except FlstreamError as error:
                self._drop(slot)
                left = [site for site in batch if site not in done]
                if len(batch) > 1:
                    batches.give_back(left)  # which of them it was is found out one by one
                else:
                    for site in left:
                        self._said.put(Lost(site, str(error)))

    def _say(self, done: set[str], said: Said, *settled: str) -> None:
        done.update(settled)
        self._said.put(said)

    def _ready_worker(self, slot: Slot) -> Worker:
        worker = slot.worker
        if worker is not None and worker.ready and worker.control.has_input():
            # Nothing is expected of it now but that it ends, as a script does that has failed.
            self._await_goodbye(worker, _END_SECONDS)
            self._drop(slot)
            worker = None
        if worker is None:
            hired = self._hiring.hire(slot.name)
            worker = slot.worker = Worker(slot.name, hired, self._service, self._abort)
        deadline = monotonic() + self._ready_seconds
        while not worker.ready:
            message = self.hear(worker, deadline, "call init()")
            if isinstance(message, Failed):
                raise WorkerLostError(message.reason)
        return worker

    def hear(self, worker: Worker, deadline: float, task: str) -> FromWorker:
        """Take a worker's next message, and deal with those that can come at any time.

        Args:
            worker: whose.
            deadline: on the clock of ``time.monotonic()``.
            task: what it is to do by then, for the message of the error.

        Raises:
            WorkerLostError: it ended, died or did not get there in time.
            AbortedError: the run is being stopped.
        """
        while True:
            left = max(deadline - monotonic(), 0.0)
            try:
                message = worker.control.receive(left, self._abort)
            except AbortedError:
                raise
            except DeadlineError as error:
                raise WorkerLostError(
                    f"it did not {task} in the time it was given (clients.round_timeout)"
                ) from error
            except FlstreamError as error:
                raise WorkerLostError(str(error)) from error
            match message:
                case Ready() if worker.ready:
                    # A script that serves many sites was imported after all: its idle is now known.
                    self._said.put(Heard(worker.name, message))
                    continue
                case Ready():
                    worker.ready = True
                    self._said.put(Heard(worker.name, message))
                case Logged():
                    self._said.put(Heard(worker.name, message))
                    continue
                case Goodbye():
                    self._said.put(Heard(worker.name, message))
                    raise WorkerLostError(
                        "its script ended before the run did; loop while is_running() is true"
                    )
            return message

    def _await_goodbye(self, worker: Worker, seconds: float) -> None:
        deadline = monotonic() + seconds
        try:
            while True:
                self.hear(worker, deadline, "end")
        except WorkerLostError:
            return

    def _drop(self, slot: Slot) -> None:
        if slot.worker is not None:
            slot.worker.kill()
            slot.worker.close()
            slot.worker = None
