"""Failures of sites: counted in a row, until a site is asked no more."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from flstream.telemetry.events import SiteFailed
from flstream.text import shortened, signal_name

# A reason has the words of somebody's exception, or a tensor's name, of whatever length.
_MOST_CHARACTERS = 2000


def brief(reason: str) -> str:
    """A reason of a length that an event can bear: one too long is cut in the middle."""
    return shortened(reason, _MOST_CHARACTERS)


def site_failed(
    number: int, site: str, reason: str, exit_code: int | None = None, *, late: bool = False
) -> SiteFailed:
    """Make the event of a site that has no part in a round.

    Args:
        number: Number of the round.
        site: Name of the site.
        reason: Clause that says why.
        exit_code: Exit code of its process if that ended, or minus the signal that killed it.
        late: Whether the only reason is that the round does not wait longer.
    """
    event = SiteFailed(round=number, site=site, reason=brief(reason), late=late)
    if exit_code is None:
        return event
    if exit_code < 0:
        return replace(event, signal=signal_name(-exit_code))
    return replace(event, exit_status=exit_code)


class FailureRecord:
    """Counts the failures of sites in a row, from what is final in the journal.

    Args:
        most: Failures in a row after which a site is benched; 0 is never.

    Attributes:
        benched: Sites that are asked no more, in the order in which that came about.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_a_row: dict[str, int] = {}
        self._failed: set[str] = set()
        self._recent: list[str] = []
        self.benched: list[str] = []

    def failed(self, sites: Iterable[str]) -> None:
        """Note sites that had no part in a task, on a record that need not be final yet."""
        self._recent += sites

    def begin(self, site: str) -> None:
        """Note a training of its own, whose failure counts whatever has failed before."""
        self._failed.discard(site)

    def settle(self, contributed: Iterable[str] | None = None) -> list[str]:
        """Count the failures noted so far, which are final now, and bench the sites that are due.

        A site's failures count once until the next model, but for those of trainings that were
        started one by one. Sites whose updates are part of a model begin anew, unless they have
        failed since the last one.

        Args:
            contributed: Sites whose updates are part of a model that was made; None without one.

        Returns:
            The sites that are asked no more from now on.
        """
        for site in self._recent:
            if site not in self._failed:
                self._failed.add(site)
                self._in_a_row[site] = self._in_a_row.get(site, 0) + 1
        self._recent.clear()
        if contributed is not None:
            for site in set(contributed) - self._failed:
                self._in_a_row.pop(site, None)
            self._failed.clear()
        benched_now = [
            site
            for site, count in self._in_a_row.items()
            if self._most and count >= self._most and site not in self.benched
        ]
        self.benched += benched_now
        return benched_now
