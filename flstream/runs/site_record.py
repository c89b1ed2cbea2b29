"""How the sites of a run did: updates, weights, failures, and the seconds of their work."""

from __future__ import annotations

from array import array
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flstream.runs.counted_events import CountedEvents
from flstream.telemetry.events import AnyEvent, RoundStarted, SiteFailed, SitePhaseChanged


@dataclass
class SiteRecord:
    """One site over the whole run.

    Attributes:
        name: Name of the site.
        updates: Rounds whose model its update is part of.
        weight: Sum of its weights in them.
        downloads: Seconds in which it was sent models to train, if it has a process of its own.
        trains: Seconds in which it trained, in all, if it has a process of its own.
        slowest: Seconds of its slowest training.
        failures: Rounds in which it had no part.
        reason: Why it had none, the last time.
        is_benched: Whether it is asked no more.
    """

    name: str
    updates: int = 0
    weight: float = 0.0
    downloads: float = 0.0
    trains: float = 0.0
    slowest: float = 0.0
    failures: int = 0
    reason: str = ""
    is_benched: bool = False


class SiteSeconds(NamedTuple):
    """Seconds of one site's work: downloads, training in all, and its slowest training."""

    downloads: float = 0.0
    trains: float = 0.0
    slowest: float = 0.0

    def __add__(self, other: tuple[float, ...]) -> SiteSeconds:  # type: ignore[override]
        """The seconds of two stretches together."""
        downloads, trains, slowest = other
        return SiteSeconds(
            self.downloads + downloads, self.trains + trains, max(self.slowest, slowest)
        )


class _Stretch(NamedTuple):
    """Work between two places of the journal, packed: a long run has very many.

    Attributes:
        end: Number of events that counted at its end.
        names: Sites that worked in it.
        seconds: Three numbers for each of them.
    """

    end: int
    names: tuple[str, ...]
    seconds: array[float]


class SiteClock:
    """Measures the work of sites by their changes of phase, such that a part of it can be undone.

    Only sites with a process of their own report these changes.

    Args:
        pool: Where names of sites are shared.
    """

    def __init__(self, pool: NamePool) -> None:
        self._pool = pool
        self._stretches: list[_Stretch] = []
        self._working: dict[str, SiteSeconds] = {}
        self._phases: dict[str, tuple[str, float]] = {}
        self._round: int | None = None

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in the order of the file."""
        match event:
            case RoundStarted():
                if event.round != self._round:
                    self._phases.clear()
                for site in event.sites:
                    self._phases.pop(site, None)
                self._round = event.round
            case SiteFailed():
                self._phases.pop(event.site, None)
            case SitePhaseChanged():
                self._change(event)

    def settle(self, end: int) -> None:
        """Close a stretch: what came before can be undone only as a whole.

        Args:
            end: Number of events that count by now.
        """
        if self._working:
            names = self._pool.shared(self._working)
            seconds = array("d", (each for work in self._working.values() for each in work))
            self._stretches.append(_Stretch(end, names, seconds))
            self._working = {}

    def undo(self, end: int) -> None:
        """Forget the work that was done after so many events that count."""
        while self._stretches and self._stretches[-1].end > end:
            self._stretches.pop()
        self._working = {}
        self._phases.clear()
        self._round = None

    def totals(self) -> dict[str, SiteSeconds]:
        """Seconds of every site that has worked."""
        found: dict[str, SiteSeconds] = {}
        for name, work in self._all():
            found[name] = found.get(name, SiteSeconds()) + work
        return found

    def _all(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        for _, names, seconds in self._stretches:
            for place, name in enumerate(names):
                yield name, tuple(seconds[3 * place : 3 * place + 3])
        yield from self._working.items()

    def _change(self, event: SitePhaseChanged) -> None:
        before, since = self._phases.get(event.site, ("", 0.0))
        self._phases[event.site] = event.state, event.time
        work, seconds = self._working.get(event.site, SiteSeconds()), max(event.time - since, 0.0)
        if (before, event.state) == ("downloading", "training"):
            work += (seconds, 0.0, 0.0)
        elif before == "training":
            work += (0.0, seconds, seconds)
        self._working[event.site] = work


def site_records(
    seconds: Mapping[str, SiteSeconds], counted: CountedEvents
) -> Mapping[str, SiteRecord]:
    """The records of all sites that were asked to do anything, by name."""
    found: dict[str, SiteRecord] = {}

    def record(name: str) -> SiteRecord:
        return found.setdefault(name, SiteRecord(name))

    for name, work in seconds.items():
        site = record(name)
        site.downloads, site.trains, site.slowest = work
    for failure in counted.failures:
        site = record(failure.site)
        site.failures, site.reason = site.failures + 1, failure.reason
    for name in counted.benched:
        record(name).is_benched = True
    for each in counted.rounds:
        for name, weight in each.weights.items():
            site = record(name)
            site.updates, site.weight = site.updates + 1, site.weight + weight
    return found


class NamePool:
    """Names of sites, each of them once, and each list of them once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}

    def shared(self, names: Iterable[str]) -> tuple[str, ...]:
        """A list of names that is shared by all who ask for the same."""
        found = tuple(self._names.setdefault(name, name) for name in names)
        return self._lists.setdefault(found, found)


class SiteWeights(Mapping[str, float]):
    """The weight of each site, in 8 bytes beside a name that is shared.

    Args:
        weights: Weight of each site.
        pool: Where its names are shared.
    """

    __slots__ = ("names", "numbers")

    def __init__(self, weights: Mapping[str, float], pool: NamePool) -> None:
        self.names = pool.shared(weights)
        self.numbers = array("d", weights.values())

    def __getitem__(self, name: str) -> float:
        if name not in self.names:
            raise KeyError(name)
        return self.numbers[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def items(self) -> ItemsView[str, float]:
        """Pairs of site and weight."""
        return _Items(self)


class _Items(ItemsView[str, float]):
    """Pairs one after another, without a search for each."""

    _mapping: SiteWeights

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self._mapping.names, self._mapping.numbers, strict=True)
