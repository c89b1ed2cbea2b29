"""Weights of sites in a round, packed: a run of a thousand sites and rounds has a million."""

from __future__ import annotations

from array import array
from collections.abc import ItemsView, Iterable, Iterator, Mapping


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
