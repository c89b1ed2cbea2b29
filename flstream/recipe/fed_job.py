"""A job put together in Python: the values of a job file, resolved as a file is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from flstream.errors import UsageError
from flstream.job import Job, make_job
from flstream.recipe.arguments import (
    STREAMING_KEYS,
    UNNEEDED,
    argument_types,
    by_name,
    component,
    key_of,
    metric_mode,
    notice,
    put,
    recipe_values,
)
from flstream.recipe.components import FilterType
from flstream.recipe.initial_model import WEIGHTS, write_weights
from flstream.recipe.job_folder import INITIAL, check_replaceable, copy_job, whole_folder
from flstream.recipe.run_result import RunResult
from flstream.recipe.sim_env import SimEnv
from flstream.simulation.factory import MadeModel

SERVER, ALL_SITES = "server", "@ALL"
_DEFAULT_METRIC = "accuracy"


class FedJob:
    """A federated job: keys of a job file, a model, and the script that each site runs.

    Keys are checked when the job is run or exported; then all mistakes are named at once, by the
    keys that they have in a job file.

    Args:
        name: Name of the job, and of its run directories.
        min_clients: Number of updates that a round needs; None for those of all sites.

    Attributes:
        name: Name of the job.
    """

    def __init__(self, name: str = "fed_job", min_clients: int | None = None) -> None:
        self.name = name
        self._values: dict[str, Any] = {"clients": {}, "train": {"alias": "nvflare"}}
        self._weights: MadeModel | None = None
        self._stages: list[dict[str, Any]] = []
        self._files: list[Path] = []
        self._site_args: dict[str, str | Mapping[str, Any]] = {}
        if min_clients is not None:
            self.configure({"clients.min_updates": min_clients})

    def to(
        self,
        obj: Any,
        target: str,
        id: str | None = None,
        filter_type: FilterType = FilterType.TASK_RESULT,
        tasks: Sequence[str] | None = None,
    ) -> None:
        """Add something to the server or to a site.

        Args:
            obj: A component or filter of :mod:`flstream.recipe`, a dict of settings, a model, or
                the path of a file that the job's folder is to have.
            target: ``"server"``, ``"@ALL"`` for all sites, or the name of one.
            id: Accepted for NVFlare's sake.
            filter_type: Values that a filter is applied to.
            tasks: Names of the tasks that a filter is for; None for all.

        Raises:
            UsageError: There is no counterpart of it.
        """
        is_dict = isinstance(obj, Mapping) and all(isinstance(key, str) for key in obj)
        site = None if target in (SERVER, ALL_SITES) else target
        is_script = is_dict and "train_script" in obj
        if is_script if target == SERVER else site is not None and not is_script:
            raise UsageError(
                f"{obj!r} cannot be added to {target}: sites have scripts, and all else is the "
                "server's or of all sites"
            )
        if is_dict and "type" in obj:
            self._add_filter("up" if filter_type is FilterType.TASK_RESULT else "down", obj, tasks)
        elif is_dict and obj.keys() <= argument_types().keys():
            self._apply("FedJob", obj, site)
        elif is_dict:
            self.configure(obj)
        elif isinstance(obj, str):
            self._files.append(Path(obj))
        elif hasattr(obj, "state_dict"):
            self._apply("FedJob", {"model": obj})
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

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set keys of the job.

        Args:
            settings: Values by the dotted name of a job file's key (``checkpoints.keep``), or by
                the flat name of NVFlare's (``tensor_download_chunk_size``).
        """
        for name, value in settings.items():
            if name in UNNEEDED:
                notice(f"{name} is not needed: {UNNEEDED[name]}")
            else:
                put(self._values, f"streaming.{name}" if name in STREAMING_KEYS else name, value)

    def export_job(self, job_root: str | Path, clients: Sequence[str] | int | None = None) -> Path:
        """Write a job folder ``<job_root>/<name>``, which ``flstream simulate`` runs.

        Args:
            job_root: Folder for the folder.
            clients: Names or number of the sites. By default those that have something of their
                own, or as many as a round needs.

        Returns:
            The path of the folder.

        Raises:
            JobError: The job has mistakes; the message names all of them.
            UsageError: The folder has something else in it, or cannot be written.
        """
        return self._export(Path(job_root) / self.name, self._client_settings(clients))

    def simulator_run(
        self,
        workspace: str | Path = "runs",
        n_clients: int | None = None,
        clients: Sequence[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
    ) -> RunResult:
        """Run the job on this machine: see :class:`~flstream.recipe.sim_env.SimEnv`."""
        known = self._client_settings(clients if clients is not None else n_clients)
        env = SimEnv(
            num_clients=known.get("clients.count", 0),
            clients=known.get("clients.names"),
            num_threads=threads,
            gpu_config=gpu,
            workspace_root=workspace,
        )
        return env.run(self)

    def resolve(self, settings: Mapping[str, Any], weights_root: Path) -> Job:
        """Resolve the job, as a job file is.

        Args:
            settings: Settings of where it runs, by the dotted name of a key.
            weights_root: Folder for the initial weights, where the model is an instance.

        Raises:
            JobError: The job has mistakes; the message names all of them.
        """
        values, folder = self._job_values(settings, weights_root)
        return make_job(values, folder, f"the job {self.name}")

    def _export(self, folder: Path, settings: Mapping[str, Any]) -> Path:
        """Write the job's folder, with the Python files below the one that its paths start in."""
        folder = Path(os.path.abspath(folder))
        check_replaceable(folder)
        with whole_folder(folder) as scratch:
            values, origin = self._job_values(settings, scratch / INITIAL)
            make_job(values, origin, f"the job {self.name}")
            copy_job(values, origin, scratch, [origin / path for path in self._files], folder)
        return folder

    def _add_filter(
        self,
        direction: Literal["up", "down"],
        section: Mapping[str, Any] | str,
        tasks: Sequence[str] | None = None,
        clients: Sequence[str] | None = None,
    ) -> None:
        """Add a filter of updates (up) or of models that sites receive, after those before it."""
        if clients is not None or not {"train", "*"} & {*(tasks or "*")}:
            raise UsageError(
                f"a filter is for the tasks {tasks} of {clients}; a job's filters are those of all "
                'sites and of trainings: leave out clients, and give tasks=["train"]'
            )
        filters = self._values.setdefault("filters", {}).setdefault(direction, [])
        try:
            filters.append(component(section))
        except (TypeError, ValueError) as error:
            kind = type(section)
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise UsageError(f"a {name} is no filter here; {error}") from None

    def _apply(self, owner: str, arguments: Mapping[str, Any], site: str | None = None) -> None:
        """Set the keys that arguments of a recipe become, for all sites or for one."""
        values = recipe_values(owner, arguments)
        if {"model", "initial_model"} <= values.keys():
            raise UsageError(f"{owner}: model and initial_model are given; leave out initial_model")
        if not values.pop("launch_external_process", False):
            values.pop("command", None)
        if site is not None:
            self._site_args[site] = values.pop("train_args", "")
        for name, value in values.items():
            key = key_of(name)
            if key == "model":
                self._weights = value.pop(WEIGHTS, None)
            before = self._values["train"].get(key.removeprefix("train."), value)
            if site is not None and before != value:
                raise UsageError(
                    f"{owner}: {name} of {site} is {value}, and that of others {before}; give all "
                    "the same, and tell them apart by their arguments"
                )
            if key:
                put(self._values, key, value)
        for site, own in values.get("per_site_config", {}).items():
            if own.keys() - {"train_args", "script_args"}:
                raise UsageError(
                    f"{site} has {', '.join(own)}; sites have their own train_args alone"
                )
            self._site_args[site] = next(iter(own.values()), "")
        self.configure(values.get("config", {}))

    def _client_settings(self, clients: Sequence[str] | int | None) -> dict[str, Any]:
        """Return the names or number of the sites, by the dotted names of keys."""
        known = self._values["clients"]
        numbers = [known.get(key) for key in ("count", "min_updates", "per_round")]
        if clients is None:
            counts = [number for number in numbers if isinstance(number, int)]
            clients = [*self._site_args] or next(iter(counts), None)
        if clients is None:
            raise UsageError(
                f"the job {self.name} has no number of clients; give min_clients=..., or name them "
                "where it is run or exported"
            )
        return {"clients.count" if isinstance(clients, int) else "clients.names": clients}

    def _job_values(
        self, settings: Mapping[str, Any], weights_root: Path
    ) -> tuple[dict[str, Any], Path]:
        """Return the values of the job file, and the folder in which its paths start."""
        values: dict[str, Any] = {"name": self.name, **deepcopy(self._values)}
        for key, value in settings.items():
            put(values, key, value)
        train, clients = values["train"], values["clients"]
        if self._site_args:
            sites = clients.get("names") or [f"site-{n + 1}" for n in range(clients["count"])]
            words = {**dict.fromkeys(sites, train.pop("args", "")), **self._site_args}
            named = {site: by_name(words[site], f"the arguments of {site}") for site in words}
            clients["args"] = {site: args for site, args in named.items() if args}
        workflow = values.setdefault("workflow", {})
        args = workflow.setdefault("args", {}) if isinstance(workflow, dict) else {}
        metric = args.get("key_metric", _DEFAULT_METRIC)
        if metric_mode(metric, values.get("stop_when")) == "min":
            args.setdefault("key_metric_mode", "min")
        if self._stages:
            shared = {name: args[name] for name in args if name.startswith("key_metric")}
            later = [{**stage, "args": {**shared, **stage["args"]}} for stage in self._stages]
            values["workflow"] = [workflow, *later]
        if self._weights is not None and "initial" not in values["model"]:
            values["model"]["initial"] = str(write_weights(self._weights, weights_root))
        return values, _folder_of(train.get("script") or train.get("learner", ""))


def _folder_of(code: str) -> Path:
    """Return where a job's paths start: here, or else beside the program or an absolute script."""
    where, colon, _ = code.rpartition(":")
    file = code if not colon else where if where.endswith(".py") else f"{where}.py"
    here = Path.cwd()
    if os.path.isabs(file):
        return here if Path(file).is_relative_to(here) else Path(file).parent
    program = getattr(sys.modules["__main__"], "__file__", None)
    beside = here if program is None else Path(os.path.abspath(program)).parent
    return beside if not (here / file).is_file() and (beside / file).is_file() else here
