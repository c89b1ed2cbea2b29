"""Which sites have failed, how often in a row, and who is asked no more."""

from __future__ import annotations

from collections.abc import Iterable

from flstream.telemetry.events import AnyEvent, RoundFinished, SiteBenched, SiteFailed

# A reason has the words of somebody's exception, or a tensor's name, of whatever length.
_MOST_CHARACTERS = 2000


def brief(reason: str) -> str:
    """A reason of a length that an event can bear: one too long is cut in the middle."""
    if len(reason) <= _MOST_CHARACTERS:
        return reason
    half = _MOST_CHARACTERS // 2
    return f"{reason[:half]} [...] {reason[-half:]}"


class FailureRecord:
    """Follows a run's events.

    Args:
        most: failures in a row after which a site is benched; 0 is never.
        events: what has happened so far.

    Attributes:
        benched: sites that are asked no more, in the order in which that came about.
    """

    def __init__(self, most: int, events: Iterable[AnyEvent] = ()) -> None:
        self._most = most
        self._in_a_row: dict[str, int] = {}
        self._round: set[str] = set()
        self.benched: list[str] = []
        for event in events:
            self.note(event)

    def note(self, event: AnyEvent) -> None:
        """Take an event."""
        match event:
            case SiteFailed(site=site, late=False) if site not in self._round:
                self._round.add(site)
                self._in_a_row[site] = self._in_a_row.get(site, 0) + 1
            case RoundFinished(weights=weights):
                for site in weights:
                    if site not in self._round:
                        self._in_a_row.pop(site, None)
                self._round.clear()
            case SiteBenched(site=site):
                self.benched.append(site)

    def due(self) -> list[str]:
        """Sites that are to be benched now."""
        if not self._most:
            return []
        benched = set(self.benched)
        return [
            site
            for site, count in self._in_a_row.items()
            if count >= self._most and site not in benched
        ]
