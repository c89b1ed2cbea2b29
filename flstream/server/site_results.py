"""What a workflow sees of its sites one by one: the models that they have, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

Failures = Mapping[str, str]
"""By site, the reason why it is left out."""

NO_FAILURES: Failures = MappingProxyType({})


class SiteModel:
    """A model of one site: a file, never held in memory.

    Attributes:
        site: Name of the site.
        digest: Digest of its body, 32 hexadecimal digits.
        effect: Number of the effect that collected it.
    """

    __slots__ = ("digest", "effect", "site")

    def __init__(self, site: str, digest: str, effect: int) -> None:
        self.site = site
        self.digest = digest
        self.effect = effect

    def __repr__(self) -> str:
        return f"SiteModel(site={self.site!r}, digest={self.digest!r}, effect={self.effect})"


class SiteModels(Mapping[str, SiteModel]):
    """The models that were collected, by site, in the order in which the sites were given.

    Args:
        models: The models by site.
        failures: By site, the reason why there is none.

    Attributes:
        failures: As given.
    """

    def __init__(self, models: Mapping[str, SiteModel], failures: Failures = NO_FAILURES) -> None:
        self._models = dict(models)
        self.failures = dict(failures)

    def __getitem__(self, site: str) -> SiteModel:
        return self._models[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def __repr__(self) -> str:
        return f"<models of {', '.join(self._models) or 'no site'}>"


class SiteScores(Mapping[str, Mapping[str, float]]):
    """What each site has found of one model: its metrics by site, in the order given.

    Args:
        metrics: Metrics by site.
        failures: By site, the reason why it has none.

    Attributes:
        failures: As given.
    """

    def __init__(
        self, metrics: Mapping[str, Mapping[str, float]], failures: Failures = NO_FAILURES
    ) -> None:
        self._metrics = {site: dict(each) for site, each in metrics.items()}
        self.failures = dict(failures)

    def __getitem__(self, site: str) -> Mapping[str, float]:
        return self._metrics[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"<scores of {', '.join(self._metrics) or 'no site'}>"
