"""What training code knows of the site it works for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flstream.client.messages import SiteTask, Task
from flstream.client.state import SiteState
from flstream.client.worker_info import WorkerInfo


@dataclass(frozen=True, slots=True)
class SiteContext:
    """A site at work on a task.

    Attributes:
        name: of the site, ``site-1`` and up.
        index: its place among the sites, from 0.
        round: number of the round, from 1. For an evaluation, that which the model came from.
        seed: of this site in this round; the global generators have been seeded with it.
        job: name of the job.
        clients: number of sites in the job.
        total_rounds: rounds in the job.
        folder: the site's own folder in the run directory.
        state: its files that are kept from round to round.
    """

    name: str
    index: int
    round: int
    seed: int
    job: str
    clients: int
    total_rounds: int
    folder: str
    state: SiteState

    @classmethod
    def of(cls, info: WorkerInfo, task: Task, site: SiteTask) -> SiteContext:
        """The context of one site of a task."""
        folder = f"{info.sites_folder}/{site.site}"
        return cls(
            name=site.site,
            index=site_index(site.site),
            round=task.round,
            seed=site.seed,
            job=info.job,
            clients=info.clients,
            total_rounds=task.total_rounds,
            folder=folder,
            state=SiteState(folder, task.round, kept=task.kind == "train"),
        )

    @property
    def state_dir(self) -> Path:
        """A folder for the site's own files, with what its last training left there.

        What a training task leaves in it is there again in the next one, once the task has been
        answered; what an evaluation leaves is not.

        Raises:
            ClientError: the task has been answered.
        """
        return self.state.path


def site_index(name: str) -> int:
    """The place of ``site-1`` and its like among all sites, from 0."""
    return int(name.rpartition("-")[2]) - 1
