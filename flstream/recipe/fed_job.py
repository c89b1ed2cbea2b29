"""A job put together in Python, which becomes the same validated job as a job file's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import Job, job_keys
from flstream.job.problems import did_you_mean
from flstream.job.workflow_code import DEFAULT_WORKFLOW
from flstream.recipe.checks import checked, notice
from flstream.recipe.components import ScriptRunner
from flstream.recipe.filters import (
    BuiltInFilter,
    Direction,
    FilterType,
    check_use,
    filter_section,
)
from flstream.recipe.initial_model import initial_model
from flstream.recipe.job_folder import write_job_folder
from flstream.recipe.job_parts import JobParts
from flstream.recipe.nvflare_names import STREAMING_KEYS, UNNEEDED_KEYS
from flstream.recipe.run_result import RunResult

SERVER, ALL_SITES = "server", "@ALL"

Clients = Sequence[str] | int | Mapping[str, Any] | None
"""Names or number of a job's sites, or keys of its section ``clients``; None for what it says."""


class FedJob:
    """A federated job: settings, a model, and the script that each site runs.

    Nothing is checked before the job is run or exported; then all mistakes are named at once, by
    the keys that they have in a job file.

    Args:
        name: Name of the job, and of its run directories.
        min_clients: Number of updates that a round needs; None for those of all sites.

    Attributes:
        name: Name of the job.
    """

    @checked
    def __init__(self, name: str = "fed_job", min_clients: int | None = None) -> None:
        self.name = name
        self._parts = JobParts(name)
        self._files: list[Path] = []
        self.set({"clients.min_updates": min_clients})

    @checked
    def to(
        self,
        obj: Any,
        target: str,
        id: str | None = None,
        filter_type: FilterType | None = None,
        tasks: Sequence[str] | None = None,
    ) -> None:
        """Add something to the server or to a site.

        Args:
            obj: A component of :mod:`flstream.recipe`, a model, a dict of settings, or the path of
                a file that the job's folder is to have.
            target: ``"server"``, ``"@ALL"`` for all sites, or the name of one.
            id: Accepted for NVFlare's sake.
            filter_type: Whether a filter is applied to what sites receive, or to their answers.
            tasks: Names of the tasks that a filter is for; None for all.

        Raises:
            UsageError: There is no counterpart of it.
        """
        if isinstance(obj, BuiltInFilter):
            check_use(tasks, None if target in (SERVER, ALL_SITES) else [target])
            self.add_filter("down" if filter_type is FilterType.TASK_DATA else "up", obj)
            return
        site = None if target in (SERVER, ALL_SITES) else target
        is_script = isinstance(obj, ScriptRunner)
        if (target == SERVER and is_script) or (site is not None and not is_script):
            what = type(obj).__name__
            raise UsageError(
                f"a {what} cannot be added to {target}: sites have scripts, and all else is the "
                "server's or of all sites"
            )
        if hasattr(obj, "add_to"):
            obj.add_to(self, site)
        elif isinstance(obj, Mapping) and all(isinstance(key, str) for key in obj):
            self.configure(obj)
        elif isinstance(obj, str):
            self._files.append(Path(obj))
        elif target == SERVER and hasattr(obj, "state_dict"):
            self.set_model(obj)
        else:
            kind = type(obj)
            raise UsageError(
                f"a {kind.__module__}.{kind.__qualname__} has no counterpart in flstream.recipe, "
                "and was not added to the job; docs/python.md lists what has one"
            )

    def to_server(self, obj: Any, id: str | None = None, **how: Any) -> None:
        """Add something to the server: see :meth:`to`."""
        self.to(obj, SERVER, id, **how)

    def to_clients(self, obj: Any, id: str | None = None, **how: Any) -> None:
        """Add something to all sites: see :meth:`to`."""
        self.to(obj, ALL_SITES, id, **how)

    def add_filter(self, direction: Direction, given: Any) -> None:
        """Add a filter after those that there are.

        Args:
            direction: Whether it is of updates (``up``), or of models that sites receive.
            given: The filter.
        """
        key = f"filters.{direction}"
        listed = self._parts.settings.get(key, [])
        self.set({key: [*listed, filter_section(given)]})

    @checked
    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set keys of the job.

        Args:
            settings: Values by the dotted name of a job file's key (``streaming.reuse``), or by
                the flat name of NVFlare's (``tensor_download_chunk_size``).

        Raises:
            UsageError: There is no such key.
        """
        known = [*job_keys(), *STREAMING_KEYS]
        for name, value in settings.items():
            if name in UNNEEDED_KEYS:
                notice(f"{name} is not needed: {UNNEEDED_KEYS[name]}")
                continue
            key = STREAMING_KEYS.get(name, name)
            if key not in known and not key.startswith(
                ("workflow.args.", "model.args.", "server_optimizer.args.")
            ):
                hint = did_you_mean(name, known) or "docs/job.md lists all keys"
                raise UsageError(f"{name} is no key of a job; {hint}")
            self.set({key: value})

    def set(self, values: Mapping[str, Any]) -> None:
        """Set keys by their dotted names; one whose value is None keeps what it has."""
        self._parts.settings |= {key: value for key, value in values.items() if value is not None}

    def add_cross_site(self, args: Mapping[str, Any]) -> None:
        """Have the workflow followed by cross_site.

        Args:
            args: Arguments of cross_site; those that are None keep their defaults.

        Raises:
            UsageError: The workflow does not train, or is followed by it already.
        """
        before = self._parts.settings.get("workflow.type", DEFAULT_WORKFLOW)
        if before in ("cross_site", "evaluate"):
            raise UsageError(
                f"the job {self.name} has the workflow {before}, and cross-site evaluation comes "
                "once, after a training"
            )
        self.set({"workflow.type": "cross_site", "workflow.args.after": before})
        self.set({f"workflow.args.{name}": value for name, value in args.items()})

    @checked
    def set_model(self, model: Any, initial_ckpt: str | None = None) -> None:
        """Set the initial model.

        Args:
            model: See :func:`~flstream.recipe.initial_model.initial_model`; None where the weights
                alone make the model.
            initial_ckpt: Path of a file with its weights; None to take those that it has.
        """
        self._parts.model = None if model is None else initial_model(model)
        self._parts.initial = initial_ckpt

    def set_runner(self, runner: ScriptRunner, site: str | None = None) -> None:
        """Set the script of a site, or of all of them."""
        self._parts.runners[site] = runner

    def set_site_args(self, site: str, script_args: str) -> None:
        """Give a site arguments of its own, instead of those of the others."""
        self._parts.site_args[site] = script_args

    @checked
    def export_job(self, job_root: str | Path, clients: Clients = None) -> Path:
        """Write the job's folder, ``<job_root>/<name>``: see :meth:`export`."""
        return self.export(Path(job_root) / self.name, clients)

    @checked
    def export(self, folder: str | Path, clients: Clients = None) -> Path:
        """Write a job folder, which ``flstream simulate`` runs: job.conf, and all that it names.

        Args:
            folder: A new or empty folder, or one that this has written.
            clients: Names or number of the sites, or keys of the section ``clients``. By default
                those that have something of their own, or as many as a round needs.

        Returns:
            The path of the folder.

        Raises:
            JobError: The job has mistakes; the message names all of them.
            UsageError: The folder has something else in it, or cannot be written.
        """
        if not isinstance(clients, Mapping):
            clients = _sites(self._parts.known_sites(clients))
        return write_job_folder(Path(folder), self._parts.resolve, clients, self._files)

    @checked
    def simulator_run(
        self,
        workspace: str | Path = "runs",
        n_clients: int | None = None,
        clients: Sequence[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
    ) -> RunResult:
        """Run the job on this machine: see :class:`~flstream.recipe.sim_env.SimEnv`."""
        from flstream.recipe.sim_env import SimEnv

        known = self._parts.known_sites(clients if clients is not None else n_clients)
        env = SimEnv(
            num_clients=known if isinstance(known, int) else 0,
            clients=None if isinstance(known, int) else known,
            num_threads=threads,
            gpu_config=gpu,
            workspace_root=str(workspace),
        )
        return env.run(self)

    def resolve(
        self, clients: Mapping[str, Any], weights_root: Path, settings: Mapping[str, Any]
    ) -> Job:
        """Resolve the job, as a job file is.

        Args:
            clients: Keys of the section ``clients``.
            weights_root: Folder for the initial weights, where the model is an instance.
            settings: Settings of where it runs, by the dotted name of a key.

        Raises:
            JobError: The job has mistakes; the message names all of them.
        """
        return self._parts.resolve(
            clients, lambda weights: weights.write_once(weights_root), settings
        )


def _sites(known: list[str] | int) -> dict[str, Any]:
    return {"count": known} if isinstance(known, int) else {"names": known}
