"""The last model that each site has sent, kept where a later workflow collects it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
