"""Facts about the run and the site, which training code finds by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flstream.worker.worker_info import WorkerInfo

if TYPE_CHECKING:
    from flstream.client.session import TrainingSession


def constants_of(info: WorkerInfo, site: str, index: int | None) -> dict[str, Any]:
    """Return the facts that are the same in every task.

    Args:
        info: Facts about the run and the worker.
        site: Name of the site.
        index: Its place among all sites, from 0.
    """
    return {
        "site_name": site,
        "site_index": index,
        "job_name": info.job,
        "job_id": info.job,
        "clients": info.clients,
        "total_rounds": info.rounds,
        "seed": info.seed,
        "site_dir": f"{info.sites_folder}/{site}",
        "job_dir": info.job_folder,
        "site_args": dict(info.site_args.get(site, {})),
        "model_args": dict(info.model_args),
    }


class SystemInfo(Mapping[str, Any]):
    """Facts about the run and the site, by name; the site's files are copied only on access.

    Args:
        session: The session.
    """

    def __init__(self, session: TrainingSession) -> None:
        self._session = session
        self._constants = session.constants()

    def __getitem__(self, key: str) -> Any:
        if key == "task_seed":
            return self._session.task_seed
        if key == "state_dir":
            return str(self._session.state_dir)
        return self._constants[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._constants
        if self._session.kind is not None:
            yield from ("task_seed", "state_dir")

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(self._constants)
