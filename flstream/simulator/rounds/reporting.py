"""What the server tells of a task while workers are at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from flstream.client.messages import Goodbye, Logged, Ready, TaskKind
from flstream.simulator.crew.crew import Retired
from flstream.simulator.crew.listening import Heard, Replaced
from flstream.simulator.rounds.tasks import Arrived, Given
from flstream.streaming.refs import Delivery
from flstream.telemetry.events import (
    AnyEvent,
    ProcessEnded,
    ProcessReady,
    Progress,
    SiteLog,
    SiteState,
    Transfer,
    Warned,
    Work,
)

_AT_WORK: dict[TaskKind, Literal["training", "evaluating"]] = {
    "train": "training",
    "evaluate": "evaluating",
}


def report_replaced(said: Replaced | Retired, emit: Callable[[AnyEvent], None]) -> None:
    """Tell of a worker that ended when it should not have, without harm to a round."""
    match said:
        case Replaced(worker, reason):
            emit(Warned(message=f"{worker} was started again: {reason}"))
        case Retired(_, reason):
            emit(Warned(message=f"{reason}; the other workers go on without it"))


def report_heard(heard: Heard, emit: Callable[[AnyEvent], None]) -> None:
    """Tell of what a worker can say at any time."""
    match heard.message:
        case Ready(pid, idle_rss):
            emit(ProcessReady(process=heard.worker, pid=pid, idle_rss=idle_rss))
        case Logged(number, site, key, value):
            emit(SiteLog(round=number, site=site, key=key, value=value))
        case Goodbye(peak_rss):
            emit(ProcessEnded(process=heard.worker, peak_rss=peak_rss))


@dataclass
class _Dealing:
    """A worker deals with sites that it has no more to do with than any other worker."""

    given: Given
    state: Literal["downloading", "training", "evaluating"] = "downloading"

    def work(self) -> Work:
        """What to say of it."""
        _, sites, delivery, turn = self.given
        over = min(max(turn.begun - 1, 0), len(sites) - 1)
        return Work(self.state, sites[over], over, len(sites), turn.since, delivery.bytes)


class TaskReport:
    """Follows one task over all workers.

    Args:
        kind: of the task.
        round_number: of the task.
        size: bytes of the model.
        emit: takes events.

    Attributes:
        down: what the model's way to the workers cost.
        arrived_at: the ``time.monotonic()`` at which the last one had it.
    """

    def __init__(
        self, kind: TaskKind, round_number: int, size: int, emit: Callable[[AnyEvent], None]
    ) -> None:
        self._kind = kind
        self._round = round_number
        self._size = size
        self._emit = emit
        self._under_way: dict[str, Delivery] = {}
        self._dealing: dict[str, _Dealing] = {}
        self._worker_of: dict[str, str] = {}
        self._answered = 0
        self.down = Transfer()
        self.arrived_at = monotonic()

    def given(self, given: Given) -> None:
        """A worker is fetching the model."""
        if given.sites != (given.worker,):
            self._dealing[given.worker] = _Dealing(given)
            self._worker_of.update(dict.fromkeys(given.sites, given.worker))
        # What happens to sites of which a worker does many in a moment is not worth an event each.
        if len(given.sites) == 1:
            (site,) = given.sites
            self._under_way[site] = given.delivery
            self._emit(SiteState(round=self._round, site=site, state="downloading"))

    def arrived(self, arrived: Arrived) -> None:
        """A worker has the model."""
        self.down += arrived.cost
        self.arrived_at = monotonic()
        state = _AT_WORK[self._kind]
        if arrived.worker in self._dealing:
            self._dealing[arrived.worker].state = state
        if len(arrived.sites) == 1:
            self._emit(SiteState(round=self._round, site=arrived.sites[0], state=state))

    def answered(self, site: str) -> None:
        """A site has answered."""
        self._answered += 1
        # The first answer of several says that its worker is done with all of them.
        self._dealing.pop(self._worker_of.pop(site, ""), None)
        if self._under_way.pop(site, None) is not None:
            self._emit(SiteState(round=self._round, site=site, state="ready"))

    def progress(self) -> None:
        """Tell how far the task is."""
        down = {site: delivery.bytes for site, delivery in self._under_way.items()}
        workers = {name: each.work() for name, each in self._dealing.items()}
        under_way = [work.down for work in workers.values() if work.state == "downloading"]
        self._emit(
            Progress(
                down=down,
                up={},
                size=self._size,
                sent=self.down.bytes + sum(under_way),
                answered=self._answered,
                workers=workers,
            )
        )
