"""The server's ends of the sockets to a worker process."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from flstream.engines.engine import WorkerProcess
from flstream.errors import (
    AbortedError,
    DeadlineError,
    FlstreamError,
    SimulationError,
    StreamingError,
    WorkerLostError,
)
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import RUN_LIMITS
from flstream.telemetry.events import Emit, ProcessEnded, ProcessReady, SiteLog
from flstream.transport.channel import SMALL_BUFFER, AbortSignal, Channel, is_hung_up
from flstream.transport.messages import MessageChannel
from flstream.worker.messages import Failed, FromWorker, Logged, Ready, Stop

if TYPE_CHECKING:
    from flstream.server.peer_link import PeerLink

_numbers = count(1)

TIMEOUT_KEY = "clients.round_timeout, or a timeout of its workflow"
"""The key that says how long a task may take, unless another one does."""

# Seconds that a worker whose code has failed may take to end.
_END_SECONDS = 5.0


class WorkerHandle:
    """The server's end of the channels to one worker process.

    One thread at a time uses it. Messages that may come at any time become events of the run.

    Args:
        name: Name of the worker.
        process: The process, with the server's ends of its sockets.
        service: Download service that offers models to it.
        abort: Signal that stops the run.
        emit: Takes events of the run.
        has_deadlines: Whether the process has to answer in time.
        is_linked: Whether its sites' links are emulated, so that little may wait in the sockets.
        is_direct: Whether either side may read files and memory of the other itself.

    Attributes:
        name: Name of the worker; its replacement has the same.
        receiver: Name under which the process receives models; its replacement has another.
        control: Channel for messages to and from the worker.
        up: Receiver that fetches the worker's updates.
        ready: Whether the worker has reported that it is ready.
    """

    def __init__(
        self,
        name: str,
        process: WorkerProcess,
        service: DownloadService,
        abort: AbortSignal,
        emit: Emit,
        *,
        is_linked: bool,
        is_direct: bool,
        has_deadlines: bool = True,
    ) -> None:
        self.name = name
        self.receiver = f"{name}/{next(_numbers)}"
        self.control: MessageChannel[FromWorker] = MessageChannel(
            process.ends.control, name, FromWorker
        )
        reads = process.ends.are_local and is_direct and not is_linked
        # Of a process of the same user, which may look into this one's memory by other means, too.
        self.up = Receiver(
            Channel(process.ends.up, name, direct=reads), name, abort, limits=RUN_LIMITS
        )
        self._peers: PeerLink | None = None
        self._lock = threading.Lock()
        self.ready = False
        self._abort = abort
        self._emit = emit
        self._has_deadlines = has_deadlines
        self._process = process
        self._service = service
        if is_linked:
            down = Channel(process.ends.down, name, buffer=SMALL_BUFFER)
        else:
            down = Channel(process.ends.down, name, direct=reads)
        service.attach(down, receiver=self.receiver)

    @property
    def lives(self) -> bool:
        """Whether the process is ready and alive; any thread may ask."""
        return self.ready and not is_hung_up(self._process.ends.peers)

    @property
    def peers(self) -> PeerLink:
        """Requests to the worker about other workers; any thread may make some."""
        from flstream.server.peer_link import PeerLink

        with self._lock:
            if self._peers is None:
                self._peers = PeerLink(self._process.ends.peers, self.name, self._abort)
            return self._peers

    def expect_fit(self) -> None:
        """Make sure that the idle process can be given a task; read what it has sent meanwhile.

        Raises:
            WorkerLostError: It cannot.
            AbortedError: The run is being stopped.
            SimulationError: The disk refused an event.
        """
        try:
            while self.control.has_input():
                message = self._take(_END_SECONDS)
                if isinstance(message, Failed):
                    # It failed after it had answered, so its answer counts.
                    self.await_end(_END_SECONDS)
                    raise WorkerLostError(message.reason)
        except (AbortedError, SimulationError, WorkerLostError):
            raise
        except FlstreamError as error:
            raise WorkerLostError(str(error)) from error
        # Over TCP, one of them may break alone. There may be messages in that of control.
        end = self._process.ends
        if is_hung_up(end.down, end.up, end.peers):
            raise WorkerLostError("one of its connections has ended")

    def next_message(self, deadline: float, task: str, key: str = TIMEOUT_KEY) -> FromWorker:
        """Wait for the next message that belongs to a task, or the first that it is ready.

        Args:
            deadline: Deadline in seconds, on the clock of ``time.monotonic()``.
            task: Verb phrase for the error's message: what the worker has to do by the deadline.
            key: Key of the job file that sets the deadline, for the message too.

        Raises:
            WorkerLostError: The worker ended, died or missed the deadline.
            AbortedError: The run is being stopped.
            SimulationError: The disk refused an event.
        """
        while True:
            try:
                seconds = max(deadline - monotonic(), 0.0) if self._has_deadlines else None
                message = self._take(seconds)
            except AbortedError:
                raise
            except DeadlineError as error:
                reason = f"it did not {task} in the time it was given ({key})"
                raise WorkerLostError(reason) from error
            except StreamingError as error:
                raise WorkerLostError(str(error)) from error
            if message is not None:
                return message

    def _take(self, seconds: float | None) -> FromWorker | None:
        """Receive one message; None if it has become an event."""
        message = self.control.receive(seconds, self._abort)
        match message:
            case Ready(pid, idle_rss, others):
                # A process that runs a script for many sites sends it twice: its idle memory is
                # known only once the script has made its imports.
                was_ready, self.ready = self.ready, True
                self._emit(
                    ProcessReady(process=self.name, pid=pid, idle_rss=idle_rss, others=others)
                )
                return None if was_ready else message
            case Logged(number, site, key, value, step, text):
                self._emit(
                    SiteLog(round=number, site=site, key=key, value=value, step=step, text=text)
                )
                return None
            case Stop(peak_rss):
                self._emit(ProcessEnded(process=self.name, peak_rss=peak_rss))
                raise WorkerLostError(
                    "its script ended before the run did; loop while is_running() is true"
                )
        return message

    def failure(self) -> Failed | None:
        """Return the failure that the worker reported before it ended; None for none."""
        with suppress(FlstreamError):
            while self.control.has_input():
                message = self._take(_END_SECONDS)
                if isinstance(message, Failed):
                    return message
        return None

    def await_end(self, seconds: float) -> None:
        """Wait until the worker has ended, for at most ``seconds``."""
        deadline = monotonic() + seconds
        with suppress(WorkerLostError):
            while True:
                self.next_message(deadline, "end")

    def kill(self) -> None:
        """Kill the process; safe to call from any thread."""
        self._process.kill()

    def exit_code(self, seconds: float) -> int | None:
        """Wait until the process has closed all its files, and return its exit code, if known."""
        return self._process.exit_code(seconds)

    def close(self) -> None:
        """Close the sockets to the process."""
        self._process.ends.control.close()  # first, since its end is what a worker ends with
        self._service.detach(self.receiver)
        self._process.ends.up.close()
        self._process.ends.peers.close()
