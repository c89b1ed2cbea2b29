"""Context of training code: the site, its task and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstream.client.messages import SiteTask, Task
from flstream.client.state import SiteState
from flstream.client.worker_info import WorkerInfo


@dataclass(frozen=True, slots=True)
class SiteContext:
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
        state: Files of the site that are kept from one training to the next.
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
    state: SiteState

    @classmethod
    def of(cls, info: WorkerInfo, task: Task, site: SiteTask) -> SiteContext:
        """Return the context of one site of a task.

        Args:
            info: Facts about the run and the worker.
            task: The task.
            site: The site's part of the task.

        Raises:
            OSError: The site's folder cannot be used.
        """
        folder = f"{info.sites_folder}/{site.site}"
        return cls(
            name=site.site,
            index=site.index,
            round=task.round,
            seed=site.seed,
            job=info.job,
            clients=info.clients,
            total_rounds=task.total_rounds,
            folder=folder,
            args=info.site_args.get(site.site, {}),
            model_args=info.model_args,
            state=SiteState(
                folder,
                task.effect,
                site.state,
                kept=task.kind == "train" and task.keeps_state,
                oldest=task.oldest,
            ),
        )

    @property
    def state_dir(self) -> Path:
        """Folder for the site's own files, with the content that its last training left.

        Its content when a training is answered is kept for the site's next task; changes made by
        an evaluation are discarded.

        Raises:
            ClientError: The task has been answered, or the files cannot be copied.
        """
        return self.state.path
