"""The turns of a worker's sites in its tasks: begin, receive, answer or fail, and finish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flstream.errors import ProtocolError
from flstream.worker.code_errors import CodeFailure
from flstream.worker.messages import SiteTask
from flstream.worker.task_execution import TaskExecution
from flstream.worker.worker import Worker


class SiteTurns:
    """The turns of a worker's sites, task after task.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._execution: TaskExecution | None = None
        self._sites: deque[SiteTask] = deque()

    def next(self, timeout: float | None = None) -> TaskExecution | None:
        """Begin the next turn, once the site of the one before has answered or failed.

        A site whose folder cannot be used has no turn. A task is finished after its last site.

        Args:
            timeout: Seconds to wait for a task; None to wait without a limit.

        Returns:
            Execution of the turn's task, for its site; None if there are no more, or none came in
            time.

        Raises:
            ProtocolError: The server sent a site's own process a task of other sites.
        """
        while True:
            while self._execution is not None and self._sites:
                if self._execution.begin(self._sites.popleft()) is not None:
                    return self._execution
            if self._execution is not None:
                self._execution.finish()
            self._execution = None  # frees what it refers to before the next model arrives
            task = self._worker.next_task(timeout)
            if task is None:
                return None
            own = self._worker.info.site
            if own is not None and [each.site for each in task.sites] != [own]:
                raise ProtocolError(f"the server sent {own} a task of other sites")
            self._execution, self._sites = TaskExecution(self._worker, task), deque(task.sites)


def serve_turns(worker: Worker, run: Callable[[TaskExecution], CodeFailure | None]) -> None:
    """Run training code for one turn after another, until the server stops the worker.

    Args:
        worker: The worker.
        run: Function that runs the code for a turn. It returns why the site fails if the code has
            not answered; None if it always has.
    """
    turns = SiteTurns(worker)
    while (execution := turns.next()) is not None:
        failure = run(execution)
        # An answer that the code sent before it failed counts, and may be on its way already.
        if failure is not None and execution.site is not None:
            execution.fail(failure)
        del execution  # frees what it refers to before the next model arrives
