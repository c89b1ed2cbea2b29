"""Kinds of task that each site's code tells apart, by its first answer, and who scores by that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from flstream.client.messages import EVALUATE, SUBMIT_MODEL, SiteAnswer

ScoreSource = Literal["auto", "task", "received"]
"""``task``: sites are asked to evaluate a model. ``received``: metrics that come with an update
score the model that the site had received. ``auto``: as their code shows by what it asks."""


class AskedKinds:
    """Kinds of task that sites' code asked about in their first tasks.

    They follow from the records of effects, so they are the same when a run is replayed. Sites
    that ask whether a task is an evaluation are sent evaluations, and score models by them. Where
    no site asks, the metrics of its update score the model that a site had received.

    Attributes:
        source: What scores the models of the current workflow.
    """

    def __init__(self) -> None:
        self.source: ScoreSource = "auto"
        self._kinds: dict[str, Collection[str]] = {}
        self._late: set[str] = set()

    def new(self, answers: Iterable[SiteAnswer]) -> dict[str, list[str]]:
        """The kinds that code asked about, for the sites whose first answers these are."""
        return {each.site: each.asks for each in answers if each.site not in self._kinds}

    def note(self, asked: Mapping[str, Sequence[str]]) -> None:
        """Take what the record of an effect says of sites' first answers."""
        self._kinds = {**asked, **self._kinds}

    def late(self, answers: Iterable[SiteAnswer]) -> list[str]:
        """The sites whose code asks about evaluations now, and not in the first task."""
        if self.source != "auto":
            return []
        late = [each.site for each in answers if EVALUATE in each.asks and self._is_late(each.site)]
        self._late.update(late)
        return late

    @property
    def is_received(self) -> bool:
        """Whether the metrics of updates score the models that sites had received."""
        if self.source == "auto":
            return bool(self._kinds) and not any(EVALUATE in each for each in self._kinds.values())
        return self.source == "received"

    def evaluators(self, sites: Iterable[str]) -> list[str]:
        """Those of some sites that are sent an evaluation, where one is due."""
        if self.is_received:
            return []
        if self.source == "task":
            return list(sites)
        return [site for site in sites if EVALUATE in self._kinds.get(site, (EVALUATE,))]

    def submitters(self, sites: Iterable[str]) -> list[str]:
        """Those of some sites that may know of the task to submit a model."""
        return [site for site in sites if self._kinds.get(site, (SUBMIT_MODEL,))]

    def _is_late(self, site: str) -> bool:
        return EVALUATE not in self._kinds.get(site, (EVALUATE,)) and site not in self._late
