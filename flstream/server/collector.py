"""Collection of the answers to one task: waits, answers, failures, the quorum, the grace period."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from flstream.errors import FlstreamError, SimulationError, WorkerLostError
from flstream.telemetry.events import SiteFailed
from flstream.text import MOST_QUOTED, brief_names, shortened, signal_name
from flstream.units import format_seconds

if TYPE_CHECKING:
    from flstream.aggregation.update import CollectedUpdate
    from flstream.job.time_section import RoundEnd
    from flstream.worker.messages import SiteAnswer

# Most reasons of failed sites in an error message.
_MOST_REASONS = 100
# Of a reason, which has the words of somebody's exception, or a tensor's name, of whatever length.
_MOST_CHARACTERS = 2000

START_KEY = "workflow.args.start_task_timeout"
"""The key whose value a site has exceeded that did not acknowledge a task in time."""

PROGRESS_KEY = "workflow.args.progress_timeout"
"""The key whose value was exceeded where nothing came of a task or a fold."""


def brief(reason: str) -> str:
    """A reason of a length that an event can bear: one too long is cut in the middle."""
    return shortened(reason, _MOST_CHARACTERS)


class SiteLost(NamedTuple):
    """A site's failure in a task.

    Attributes:
        site: Name of the site.
        reason: Clause that says why it failed.
        exit_code: Exit code of its process if that ended, or minus the signal that killed it.
    """

    site: str
    reason: str
    exit_code: int | None = None

    @classmethod
    def by(cls, site: str, error: FlstreamError) -> SiteLost:
        """Describe the failure of a site by the error that it has caused."""
        code = error.exit_code if isinstance(error, WorkerLostError) else None
        return cls(site, str(error), code)

    def event(self, number: int, *, late: bool = False) -> SiteFailed:
        """Make the event of a site that has no part in a round.

        Args:
            number: Number of the round.
            late: Whether the only reason is that the round does not wait longer.
        """
        event = SiteFailed(round=number, site=self.site, reason=brief(self.reason), late=late)
        if self.exit_code is None:
            return event
        if self.exit_code < 0:
            return replace(event, signal=signal_name(-self.exit_code))
        return replace(event, exit_status=self.exit_code)


class TaskWaits(NamedTuple):
    """How long there may be nothing from the sites of a task, beside the time that each may take.

    Attributes:
        start: Seconds in which a site has to acknowledge it; None for as long as it may take.
        progress: Seconds after which the run fails if nothing has come of the task, from no site;
            None is without limit.
    """

    start: float | None = None
    progress: float | None = None

    def expecting(
        self, events: Iterator[bool], task: str, number: int, sites: Callable[[], Sequence[str]]
    ) -> Iterator[bool]:
        """Pass on a pool's events, and give the run up if there is none for too long."""
        moved = monotonic()
        for has_moved in events:
            if has_moved:
                moved = monotonic()
            elif self.progress is not None and monotonic() - moved > self.progress:
                raise SimulationError(
                    f"nothing came of the {task} of round {number} for "
                    f"{format_seconds(self.progress)} ({PROGRESS_KEY}); "
                    f"{brief_names(sites())} did not answer: see their logs, or allow more"
                )
            began = monotonic()
            yield has_moved
            moved += monotonic() - began  # what the server does meanwhile is no silence of theirs


UNLIMITED = TaskWaits()
"""As long as each site may take."""


@dataclass
class ResultCollector:
    """Collector of the answers to one task.

    Attributes:
        task: Description of the task for messages, such as ``train round 3``.
        cohort: Sites of the task, in the order in which their updates are folded.
        least: Number of answers that the task needs.
        end: When it stops waiting for further sites; None to wait for all.
        answers: Answers received, by site.
        updates: The updates among them that are at hand, by site.
        failures: Reason for each site's failure, by site.
        spared: Sites whose tasks were cancelled before they were given.
    """

    task: str
    cohort: Sequence[str]
    least: int
    end: RoundEnd | None = None
    answers: dict[str, SiteAnswer] = field(default_factory=dict)
    updates: dict[str, CollectedUpdate] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    spared: set[str] = field(default_factory=set)
    _began: float = field(default_factory=lambda: monotonic())
    _enough_at: float | None = None
    _settled: int = 0

    def answer(self, answer: SiteAnswer, update: CollectedUpdate | None = None) -> None:
        """Add a site's answer, with its update if it has sent one."""
        self.answers[answer.site] = answer
        if update is not None:
            self.updates[answer.site] = update
        if self._enough_at is None and self._is_enough:
            self._enough_at = monotonic()

    def fail(self, site: str, reason: str) -> None:
        """Record a site's failure, and drop its answer if it had one."""
        self.failures[site] = brief(reason)
        self.answers.pop(site, None)
        self.updates.pop(site, None)
        if not self._is_enough:
            self._enough_at = None
        able = len(self.cohort) - len(self.failures) - len(self.spared)
        if able < self.least:
            raise SimulationError(
                f"{self.reasons()}; so {able} of {len(self.cohort)} sites are left to "
                f"{self.task}, and {self.least} have to (clients.min_updates)"
            )

    def reasons(self) -> str:
        """Failed sites, those with the same reason together, with the first 100 reasons."""
        by_reason: dict[str, list[str]] = {}
        for site, reason in self.failures.items():
            by_reason.setdefault(shortened(reason, MOST_QUOTED), []).append(site)
        clauses = []
        for reason, sites in islice(by_reason.items(), _MOST_REASONS):
            logs = f"its log is sites/{sites[0]}/log.txt"
            if len(sites) > 1:
                logs = f"their logs are as sites/{sites[0]}/log.txt"
            clauses.append(f"{brief_names(sites)}: {reason}; {logs}")
        if (more := len(by_reason) - _MOST_REASONS) > 0:
            clauses.append(f"and {more} more, which summary.json names")
        return "; ".join(clauses)

    @property
    def late(self) -> Sequence[str]:
        """Unsettled sites for which the task does not wait any longer, by the wall clock."""
        if self.end is None or self._enough_at is None:
            return ()
        ends_at = max(self._enough_at + self.end.grace, self._began + self.end.earliest)
        if monotonic() < ends_at:
            return ()
        return [site for site in self.cohort if not self.is_settled(site)]

    @property
    def _is_enough(self) -> bool:
        return self.end is not None and len(self.answers) >= self.end.answers

    def is_settled(self, site: str) -> bool:
        """Whether a site has answered, has failed or was spared."""
        return site in self.answers or site in self.failures or site in self.spared

    @property
    def settled(self) -> int:
        """Length of the longest prefix of the cohort in which every site is settled."""
        while self._settled < len(self.cohort) and self.is_settled(self.cohort[self._settled]):
            self._settled += 1
        return self._settled

    def spare(self, sites: Iterable[str]) -> None:
        """Mark sites as not needed, as enough others have answered."""
        self.spared.update(sites)

    def check_size(self) -> None:
        """Check that the cohort has at least ``least`` sites."""
        if len(self.cohort) < self.least:
            raise SimulationError(
                f"{len(self.cohort)} sites are left to {self.task}, and {self.least} have to "
                "(clients.min_updates); the others failed too often (clients.suspend_after), of "
                "which summary.json says why, or their devices are away"
            )

    @property
    def in_order(self) -> Mapping[str, SiteAnswer]:
        """Answers in the cohort's order, on which the last bits of a mean depend."""
        return {site: self.answers[site] for site in self.cohort if site in self.answers}
