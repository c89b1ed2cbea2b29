"""A site's part of a task: what its training code sees of it, and the files that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flstream.client.learner import SiteContext
from flstream.worker.messages import SiteTask, Task
from flstream.worker.state import SiteState
from flstream.worker.worker_info import WorkerInfo


@dataclass(frozen=True, slots=True)
class SiteWork(SiteContext):
    """A site's part of a task.

    Attributes:
        state: Files of the site that are kept from one training to the next.
    """

    state: SiteState

    @classmethod
    def of(cls, info: WorkerInfo, task: Task, site: SiteTask) -> SiteWork:
        """Return one site's part of a task.

        Args:
            info: Facts about the run and the worker.
            task: The task.
            site: The site's part, as the server describes it.

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
        """Folder for the site's own files, laid out when it is first asked for."""
        return self.state.path
