"""One round's answers as they come in: who has answered, who failed, and when it is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Generic, TypeVar

from flstream.errors import SimulationError

AnswerT = TypeVar("AnswerT")

# A sentence has no room for more sites than this, each with its reason.
_MOST_NAMED = 100


@dataclass
class Gathering(Generic[AnswerT]):
    """The answers to one task.

    Attributes:
        task: what was asked, for messages.
        cohort: who was asked, in the order in which updates are folded.
        least: how many have to answer.
        patience: seconds for the others once so many have; None waits for all.
        answers: by site.
        failures: by site, the reason why it has no part in the round.
        spared: sites that were not asked after all.
    """

    task: str
    cohort: Sequence[str]
    least: int
    patience: float | None = None
    answers: dict[str, AnswerT] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    spared: set[str] = field(default_factory=set)
    _enough_at: float | None = None
    _settled: int = 0

    def answer(self, site: str, answer: AnswerT) -> None:
        """A site has answered."""
        self.answers[site] = answer
        if self._enough_at is None and len(self.answers) >= self.least:
            self._enough_at = monotonic()

    def fail(self, site: str, reason: str) -> None:
        """A site has no part in the round, not even a part of one.

        Raises:
            SimulationError: too few are left; the message has each site and its reason.
        """
        self.failures[site] = reason
        self.answers.pop(site, None)
        if len(self.answers) < self.least:
            self._enough_at = None
        left = len(self.cohort) - len(self.failures) - len(self.spared)
        if left < self.least:
            raise SimulationError(
                f"{left} of {len(self.cohort)} sites are left to {self.task}, and "
                f"{self.least} have to (clients.min_updates): {self.told()}"
            )

    def told(self) -> str:
        """Each site that failed, and why; of very many, the first, and how many more there are."""
        named = [
            f"{site}: {reason}; its log is sites/{site}/log.txt"
            for site, reason in islice(self.failures.items(), _MOST_NAMED)
        ]
        if len(self.failures) > len(named):
            named.append(f"and {len(self.failures) - len(named)} more, which summary.json names")
        return "; ".join(named)

    @property
    def late(self) -> Sequence[str]:
        """Who is no longer waited for."""
        if self.patience is None or self._enough_at is None:
            return ()
        if monotonic() - self._enough_at < self.patience:
            return ()
        return [site for site in self.cohort if not self.is_settled(site)]

    def is_settled(self, site: str) -> bool:
        """Whether it is known what becomes of a site."""
        return site in self.answers or site in self.failures or site in self.spared

    @property
    def settled(self) -> int:
        """For how many sites, from the first, it is known what becomes of them."""
        while self._settled < len(self.cohort) and self.is_settled(self.cohort[self._settled]):
            self._settled += 1
        return self._settled

    def spare(self, sites: Iterable[str]) -> None:
        """Do not ask some sites after all: enough others have answered."""
        self.spared.update(sites)

    def check_size(self) -> None:
        """See to it that there are enough to be asked.

        Raises:
            SimulationError: there are not.
        """
        if len(self.cohort) < self.least:
            raise SimulationError(
                f"{len(self.cohort)} sites are left to {self.task}, and {self.least} have to "
                "(clients.min_updates); the others failed too often (clients.bench_after), and "
                "summary.json says why"
            )

    @property
    def in_order(self) -> Mapping[str, AnswerT]:
        """The answers in the order of the cohort."""
        return {site: self.answers[site] for site in self.cohort if site in self.answers}
