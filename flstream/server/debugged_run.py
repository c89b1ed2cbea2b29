"""The face of a run of which one site is debugged: the run ends once that site has trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flstream.debugging import DebuggedSite, debugged_site
from flstream.errors import AbortedError, WorkflowError
from flstream.server.effects import uncatchable
from flstream.server.program_view import Model, Updates
from flstream.server.run import Run


class DebuggedRun(Run):
    """A run that trains one site alone where its workflow would train it, and then ends.

    What comes before in the round is done as ever: in a cyclic workflow, other sites make the model
    that the site receives.
    """

    @property
    def _debugged(self) -> DebuggedSite:
        site = debugged_site()
        assert site is not None
        return site

    def rounds(self) -> Iterator[int]:
        """The numbers of the rounds, up to that of the debugged site."""
        for number in super().rounds():
            if number > self._debugged.round:
                break
            yield number
        self._expect_trained()

    def train(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None = None,
        timeout: float | None = None,
        **values: Any,
    ) -> Updates:
        """Train the sites; where the debugged one is among them, that one alone."""
        if self._is_due and self._debugged.site in sites:
            self._end_with(super().train(model, [self._debugged.site], 0, timeout, **values))
        return super().train(model, sites, min_updates, timeout, **values)

    def start(self, site: str, model: Model, timeout: float | None = None, **values: Any) -> None:
        """Start a training; that of the debugged site is waited for."""
        if site == self._debugged.site and self._is_due:
            self.train(model, [site], 0, timeout, **values)
        super().start(site, model, timeout, **values)

    @uncatchable
    def _end_with(self, updates: Updates) -> None:
        """Keep the answer of the debugged site, and end the run."""
        site = self._debugged
        site.has_trained = True
        for update in updates:
            site.weight, site.metrics = update.weight, dict(update.metrics)
        site.failure = updates.failures.get(site.site, "")
        raise AbortedError("the debugged site has trained")

    @property
    def _is_due(self) -> bool:
        return self._state.round == self._debugged.round and self._state.journal.is_live

    @uncatchable
    def _expect_trained(self) -> None:
        site = self._debugged
        if not site.has_trained:
            raise WorkflowError(
                f"the workflow did not ask {site.site} to train in round {site.round}; name "
                "another round with --round, or another site with --site"
            )
