"""The last model that each site has sent, kept where a later workflow collects it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flstream.aggregation.adoption import kept_update, write_site_model
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update import UpdateSource
from flstream.model.source import Source
from flstream.runs.run_directory import RunDirectory


class LastModels:
    """Knows of each site the last model that it sent, going by the folds on record.

    Args:
        run: The run directory.

    Attributes:
        digests: By site, the digest of its model.
        effects: By site, the number of the fold that took it.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self.digests: dict[str, str] = {}
        self.effects: dict[str, int] = {}

    def add(self, kept: Mapping[str, str], effect: int) -> None:
        """Take in the models that a fold on record has kept.

        Args:
            kept: Digest of each model, by site.
            effect: Number of the fold.
        """
        self.digests |= kept
        self.effects |= dict.fromkeys(kept, effect)

    def path(self, site: str) -> Path:
        """Where the last model of a site lies."""
        return self._run.last_model(site)


class FoldKeeper:
    """Keeps the models of one fold's updates, each before it is folded.

    Should the run be cut off before the fold is on record, the fold is done again, and with it
    this.

    Args:
        last: Where they lie.
        base: The model that the sites started from.
        rule: How updates are combined.
        check: Called now and then; raises to end the work.

    Attributes:
        digests: By site, the digest of its model, of those that were kept so far.
    """

    def __init__(
        self,
        last: LastModels,
        base: Source,
        rule: AggregationRule,
        check: Callable[[], None],
    ) -> None:
        self.digests: dict[str, str] = {}
        self._last = last
        self._base = base
        self._rule = rule
        self._check = check
        self._kept: dict[str, UpdateSource] = {}

    def keep(self, update: UpdateSource, step: int) -> UpdateSource:
        """Keep the model of an update.

        Args:
            update: The update.
            step: Bytes that are written at a time.

        Returns:
            The update as it is to be folded: read from the file, where that has the same bytes, so
            that a worker has to send it once.

        Raises:
            UpdateRefusedError: It does not fit the model, or is not finite.
            CheckpointError: The disk does not take it.
        """
        if update.site in self._kept:
            return self._kept[update.site]
        path = self._last.path(update.site)
        digest = write_site_model(
            path, update.base or self._base, update, self._rule, step, self._check
        )
        self.digests[update.site] = digest
        kept = self._kept[update.site] = kept_update(path, update, self._rule)
        return kept
