"""Context of training code: the site, its task and its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SiteContext(ABC):
    """A site and its current task.

    Attributes:
        name: Name of the site, such as ``site-1``.
        index: Position of the site among all sites, from 0.
        round: Number of the round, from 1; for an evaluation, of the round that made the model.
        seed: Seed of the site's random numbers in this task; the global generators use it.
        job: Name of the job.
        clients: Number of sites in the job.
        total_rounds: Number of rounds in the job.
        folder: Path of the site's folder in the run directory.
        args: Arguments of this site alone, by name (``clients.args``).
        model_args: Arguments of the model's factory, by name (``model.args``).
    """

    name: str
    index: int
    round: int
    seed: int
    job: str
    clients: int
    total_rounds: int
    folder: str
    args: Mapping[str, Any]
    model_args: Mapping[str, Any]

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """Folder for the site's own files, with the content that its last training left.

        Its content when a training is answered is kept for the site's next task; changes made by
        an evaluation are discarded.

        Raises:
            ClientError: The task has been answered, or the files cannot be copied.
        """
