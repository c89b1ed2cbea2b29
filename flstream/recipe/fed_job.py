"""Job built in Python from the values of a job file."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import Job, JobError, WorkflowArgs, make_job
from flstream.recipe import arguments
from flstream.recipe.arguments import KEYS, FilterType, by_name, checked, put
from flstream.recipe.initial_model import WEIGHTS, write_weights
from flstream.recipe.job_folder import portable, python_files, whole_folder, write_job_folder
from flstream.recipe.nvflare import Component
from flstream.recipe.nvflare_table import ARGUMENTS as ARGUMENTS_OF_NVFLARE
from flstream.recipe.sim_env import ARGUMENTS, RunResult, SimEnv
from flstream.simulation.export_files import MadeModel
from flstream.telemetry.events import default_site_names
from flstream.text import shortened

_PORT = re.compile(r"--master[_-]port[= ]\d+")
_HEAD, _INITIAL = "# Exported by flstream. Run it: flstream simulate ", "initial"


class FedJob:
    """Federated job: keys of a job file, a model, and the script of each site.

    Values are checked when the job is run or exported; then all mistakes are named at once.

    Args:
        name: Name of the job, and of its run directories.
        min_clients: Number of updates that a round needs (``clients.min_updates``); None for those
            of all sites. A recipe's ``min_clients`` is ``clients.per_round``, as in NVFlare.
        mandatory_clients: None, since no site is more than another.
        meta_props: Accepted for NVFlare's sake.

    Raises:
        UsageError: There are mandatory clients.

    Attributes:
        name: Name of the job.
    """

    def __init__(
        self,
        name: str = "fed_job",
        min_clients: int | None = None,
        mandatory_clients: Sequence[str] | None = None,
        meta_props: Mapping[str, Any] | None = None,
    ) -> None:
        if mandatory_clients:
            raise UsageError(
                f"{name}: mandatory_clients is {mandatory_clients}; clients.min_updates is a "
                "number, whoever they are: give min_clients"
            )
        self.name = name
        self._values: dict[str, Any] = {
            "clients": {} if min_clients is None else {"min_updates": min_clients},
            "train": {"alias": "nvflare"},
            "workflow": {"args": {}},
        }
        self._arguments: dict[str, str] = {}  # names of arguments by the key that they became
        self._weights: MadeModel | None = None
        self._last_workflow: dict[str, Any] = {}
        self._files: list[Path] = []
        self._site_args: dict[str, Any] = {}

    @checked
    def to(
        self,
        obj: Any,
        target: str,
        id: str | None = None,
        filter_type: FilterType = FilterType.TASK_RESULT,
        tasks: Sequence[str] | None = None,
        clients: Sequence[str] | None = None,
    ) -> Mapping[str, str]:
        """Add something to the server or to a site.

        Args:
            obj: A component or filter of :mod:`flstream.recipe`, a dict of settings, a model, or
                the path of a file that the job's folder is to have.
            target: ``"server"``, ``"@ALL"`` for all sites, or the name of one.
            id: Accepted for NVFlare's sake.
            filter_type: Values that a filter is applied to.
            tasks: Names of the tasks that a filter is for, ``train`` among them; None for all.
            clients: None, since the filters of a job are those of all sites.

        Returns:
            Names of its parts, as in NVFlare, whose jobs name them elsewhere.

        Raises:
            UsageError: There is no counterpart of it.
        """
        is_dict = isinstance(obj, Mapping) and all(isinstance(key, str) for key in obj)
        is_script = is_dict and "train_script" in obj
        site = None if target in arguments.PLACES else target
        is_misplaced = is_script if target == arguments.SERVER else site and not is_script
        if isinstance(obj, Component):
            self._add_component(obj)
        elif is_misplaced:
            raise UsageError(
                f"{obj!r} cannot be added to {target}: sites have scripts, and all else is the "
                "server's or of all sites"
            )
        elif is_dict and "type" in obj:
            if clients is not None or not {"train", "*"} & {*(tasks or "*")}:
                raise UsageError(
                    f"a filter is for the tasks {tasks} of {clients}; a job's filters are those of "
                    'all sites and of trainings: leave out clients, and give tasks=["train"]'
                )
            direction = "up" if filter_type is FilterType.TASK_RESULT else "down"
            self._values.setdefault("filters", {}).setdefault(direction, []).append(obj)
        elif is_dict and obj.keys() <= KEYS.keys():
            self.set_arguments(obj, site)
        elif is_dict:
            self.configure(obj)
        elif isinstance(obj, str | Path):
            self._files.append(Path(obj))
        elif hasattr(obj, "state_dict"):
            self.set_arguments({"model": obj})
        else:
            kind = type(obj)
            raise UsageError(
                f"a {kind.__module__}.{kind.__qualname__} has no counterpart in flstream.recipe, "
                "and was not added to the job; docs/reference/recipe.md lists what has one"
            )
        return {"persistor_id": id or "persistor", "locator_id": "locator"}

    def _add_component(self, component: Component) -> None:
        settings = dict(component["config"])
        kind = settings.pop("workflow.type", "")
        if kind in ("cross_site", "evaluate") and "type" in self._values["workflow"]:
            args = {key.removeprefix("workflow.args."): settings[key] for key in settings}
            self.append_workflow(kind, args)
            return
        self.set_arguments(component)

    @checked
    def to_server(self, obj: Any, id: str | None = None, **how: Any) -> Mapping[str, str]:
        """Add something to the server: see :meth:`to`."""
        return self.to(obj, arguments.SERVER, id, **how)

    @checked
    def to_clients(self, obj: Any, id: str | None = None, **how: Any) -> Mapping[str, str]:
        """Add something to all sites: see :meth:`to`."""
        return self.to(obj, arguments.ALL_SITES, id, **how)

    @checked
    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set keys of the job.

        Args:
            settings: Values by the dotted name of a job file's key (``checkpoints.keep``), or by
                the flat name of NVFlare's (``tensor_download_chunk_size``).
        """
        for name, value in settings.items():
            key = f"streaming.{name}" if name in arguments.STREAMING_KEYS else name
            if key == "workflow" and isinstance(value, str):
                key = "workflow.type"
            if arguments.is_needed(name):
                put(self._values, key, value)

    @checked
    def set_arguments(self, values: Mapping[str, Any], site: str | None = None) -> None:
        """Set the keys that arguments of a recipe become, for all sites or for one."""
        owner, converted = type(self).__name__, {}
        for name, value in values.items():
            name = "model" if name == "initial_model" else name
            if isinstance(value, Component):
                self._add_component(value)
                continue
            if value is None and name in ARGUMENTS_OF_NVFLARE:
                continue
            try:
                if arguments.is_needed(name):
                    arguments.expect_known(name)
                    converted[name] = arguments.converted(name, value)
            except (TypeError, AttributeError, ValueError) as error:
                what = f"{name} is {shortened(repr(value), 60)}"
                raise UsageError(f"{owner}: {what}: {error}") from error
        converted = {name: value for name, value in converted.items() if value is not None}
        if not isinstance(values.get("aggregator"), str | Mapping | None):
            converted["aggregator"]["args"] |= arguments.form_of_updates(values)
        if not converted.pop("launch_external_process", False):
            converted.pop("command", None)
        if site is not None:
            self._site_args[site] = converted.pop("train_args", "")
        self.set_per_site_config(converted.pop("per_site_config", {}))
        config = converted.pop("config", {})
        for name, value in converted.items():
            key = KEYS[name]
            if key == "model":  # of which the last one counts
                self._weights = value.pop(WEIGHTS, None)
                self._values.get("model", {}).pop("factory", None)
                self._values.get("model", {}).pop("args", None)
            before = self._values["train"].get(key.removeprefix("train."), value)
            if site is not None and before != value:
                raise UsageError(
                    f"{owner}: {name} of {site} is {value}, and that of others {before}; give all "
                    "the same, and tell them apart by their arguments"
                )
            if key:
                put(self._values, key, value)
                self._arguments[key] = name
        self.configure(config)

    @checked
    def set_per_site_config(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Give sites arguments of their own: by site, ``{"train_args": "--data a.csv"}``.

        A ``command`` may differ in its ``--master_port`` alone, which is left out: each site's
        ranks find a free one.
        """
        launchers = set()
        for site, own in config.items():
            others = {name for name in own if ARGUMENTS_OF_NVFLARE.get(name) != ""}
            if unknown := sorted(others - {"train_args", "command", "launch_external_process"}):
                raise UsageError(
                    f"{site} has {', '.join(unknown)}; sites have their own train_args alone"
                )
            if "command" in own:
                launchers.add(_PORT.sub("", str(own["command"])).strip())
            self._site_args[site] = own.get("train_args", self._site_args.get(site))
        if len(launchers) > 1:
            raise UsageError(
                f"{self.name}: sites have the commands {' and '.join(sorted(launchers))}; give all "
                "sites one command"
            )
        for launcher in launchers:
            if (command := arguments.converted("command", launcher)) is not None:
                put(self._values, "train.command", command)

    def configured_sites(self) -> list[str]:
        """Return the names of the sites that have arguments of their own."""
        return list(self._site_args)

    def append_workflow(self, kind: str, args: Mapping[str, Any]) -> None:
        """Append a workflow after the training."""
        workflow = self._values["workflow"]
        is_one = isinstance(workflow, dict) and workflow.get("type") != "evaluate"
        if self._last_workflow or not is_one:
            raise UsageError(f"{self.name} cannot have {kind} here; it comes once, after training")
        self._last_workflow = {"type": kind, "args": dict(args)}

    @checked
    def export_job(self, job_root: str | Path) -> Path:
        """Write a job folder ``<job_root>/<name>``, and return its path.

        It has all Python files below the folder that the job's paths start in.

        Args:
            job_root: Folder for the folder, which is new, empty or an earlier export.

        Raises:
            JobError: The job has mistakes; the message names all of them.
            UsageError: The folder has something else in it, or cannot be written.
        """
        return self.write(Path(job_root) / self.name, {})

    @checked
    def simulator_run(
        self,
        workspace: str | Path = "runs",
        n_clients: int | None = None,
        clients: Sequence[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
        log_config: str | None = None,
    ) -> RunResult:
        """Run the job on this machine: see :class:`~flstream.recipe.sim_env.SimEnv`."""
        env = SimEnv(
            num_clients=n_clients or 0,
            clients=clients,
            num_threads=threads,
            gpu_config=gpu,
            workspace_root=workspace,
        )
        return env.run(self)

    def resolve(
        self, settings: Mapping[str, Any], weights_root: Path
    ) -> tuple[Job, dict[str, Any], Path]:
        """Return the job, the values of its job file, and the folder of their paths.

        Weights of a model that is an instance are written below a folder.
        """
        values: dict[str, Any] = {"name": self.name, **deepcopy(self._values)}
        if "clients.count" in settings and isinstance(values["clients"], dict):
            values["clients"].pop("names", None)
        for key, value in settings.items():
            put(values, key, value)
        if isinstance(values["clients"], dict) and isinstance(values["train"], dict):
            self._fill(values)
        if self._weights is not None and "initial" not in values["model"]:
            values["model"]["initial"] = str(write_weights(self._weights, weights_root))
        folder = _folder_of(values["train"])
        try:
            return make_job(values, folder, f"the job {self.name}"), values, folder
        except JobError as error:
            names = {**self._arguments, **{key: ARGUMENTS.get(key, key) for key in settings}}
            problems = [replace(p, key=names.get(p.key, p.key)) for p in error.problems]
            raise JobError(error.path, problems) from None

    def _fill(self, values: dict[str, Any]) -> None:
        """Fill in the number of sites, arguments, the metric's mode, a last workflow."""
        train, clients, workflow = values["train"], values["clients"], values["workflow"]
        number = clients.get("min_updates", clients.get("per_round"))
        if not {"count", "names"} & clients.keys():
            clients |= {"names": [*self._site_args]} if self._site_args else {"count": number}
        if self._site_args:
            sites = clients.get("names") or default_site_names(int(clients["count"]))
            of_all = train.pop("args", {})
            own_words = {site: own for site, own in self._site_args.items() if own is not None}
            words = {**dict.fromkeys(sites, of_all), **own_words}
            clients["args"] = {site: by_name(own, site) for site, own in words.items()}
        if not isinstance(workflow, dict):
            if self._last_workflow:
                kind = self._last_workflow["type"]
                raise UsageError(f"{self.name} has a list of workflows; put {kind} at its end")
            return
        args = workflow.setdefault("args", {})
        metric = args.get("key_metric", WorkflowArgs.model_fields["key_metric"].default)
        if arguments.metric_mode(str(metric), str(values.get("stop_when"))) == "min":
            args.setdefault("key_metric_mode", "min")
        if last := self._last_workflow:
            shared = {name: args[name] for name in args if name.startswith("key_metric")}
            values["workflow"] = [workflow, {**last, "args": {**shared, **last["args"]}}]

    def write(self, folder: Path, settings: Mapping[str, Any]) -> Path:
        """Write a job folder, with the Python files below the job's origin."""
        folder = Path(os.path.abspath(folder))
        with whole_folder(folder, _HEAD) as scratch:
            _, values, origin = self.resolve(settings, scratch / _INITIAL)
            files = {path.relative_to(origin): path for path in python_files(origin, folder)}
            values = portable(portable(values, scratch, {}), origin, files)
            for path in [origin / path for path in self._files]:
                other = files.setdefault(Path(path.name), path)
                if other != path or path.name == "job.conf":
                    both = f"{other} and {path} would both be {path.name}"
                    raise UsageError(f"{both} in the job's folder; rename one")
            write_job_folder(scratch, f"{_HEAD}{folder.name}", values, files)
            shutil.rmtree(folder / _INITIAL, ignore_errors=True)  # of an earlier export
        return folder


def _folder_of(train: Any) -> Path:
    """Return the folder of a job's paths: of the working folder, program or script."""
    code = str(train.get("script") or train.get("learner", "") if isinstance(train, dict) else "")
    where, colon, _ = code.rpartition(":")
    file = code if not colon else where if where.endswith(".py") else f"{where}.py"
    working = Path.cwd()
    if os.path.isabs(file):
        return working if Path(file).is_relative_to(working) else Path(file).parent
    program = getattr(sys.modules["__main__"], "__file__", None)
    beside = working if program is None else Path(os.path.abspath(program)).parent
    return beside if not (working / file).is_file() and (beside / file).is_file() else working
