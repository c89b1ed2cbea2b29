"""What the server tells of a task while workers are at it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Literal

from flstream.client.messages import Goodbye, Logged, Ready, TaskKind
from flstream.simulator.listening import Heard, Replaced
from flstream.simulator.tasks import Arrived, Given
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
)

_AT_WORK: dict[TaskKind, Literal["training", "evaluating"]] = {
    "train": "training",
    "evaluate": "evaluating",
}


def report_replaced(replaced: Replaced, emit: Callable[[AnyEvent], None]) -> None:
    """Tell of a worker that ended when it should not have, without harm to a round."""
    emit(Warned(message=f"{replaced.worker} was started again: {replaced.reason}"))


def report_heard(heard: Heard, emit: Callable[[AnyEvent], None]) -> None:
    """Tell of what a worker can say at any time."""
    match heard.message:
        case Ready(pid, idle_rss):
            emit(ProcessReady(process=heard.worker, pid=pid, idle_rss=idle_rss))
        case Logged(number, site, key, value):
            emit(SiteLog(round=number, site=site, key=key, value=value))
        case Goodbye(peak_rss):
            emit(ProcessEnded(process=heard.worker, peak_rss=peak_rss))


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
        self.down = Transfer()
        self.arrived_at = monotonic()

    def given(self, given: Given) -> None:
        """A worker is fetching the model."""
        # What happens to sites of which a worker does many in a moment is not worth an event each.
        if len(given.sites) == 1:
            (site,) = given.sites
            self._under_way[site] = given.delivery
            self._emit(SiteState(round=self._round, site=site, state="downloading"))

    def arrived(self, arrived: Arrived) -> None:
        """A worker has the model."""
        self.down += arrived.cost
        self.arrived_at = monotonic()
        if len(arrived.sites) == 1:
            state = _AT_WORK[self._kind]
            self._emit(SiteState(round=self._round, site=arrived.sites[0], state=state))

    def answered(self, site: str) -> None:
        """A site has answered."""
        if self._under_way.pop(site, None) is not None:
            self._emit(SiteState(round=self._round, site=site, state="ready"))

    def progress(self) -> None:
        """Tell how far the transfers under way are."""
        down = {site: delivery.bytes for site, delivery in self._under_way.items()}
        self._emit(Progress(down=down, up={}, size=self._size))
