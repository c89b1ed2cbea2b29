"""The parts of a job, and the values that they have in a job file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flstream.errors import UsageError
from flstream.job import Job, make_job
from flstream.job.imports import own_files
from flstream.job.stage import Stage
from flstream.job.values import nested
from flstream.recipe.components import ExchangeFormat, FrameworkType, ScriptRunner
from flstream.recipe.initial_model import FactoryCall, Weights
from flstream.recipe.nvflare_names import metric_mode
from flstream.recipe.training_scripts import PLAIN_COMMANDS, by_name, imports_nvflare
from flstream.telemetry.events import default_site_names


@dataclass
class JobParts:
    """What a job is put together of.

    Attributes:
        name: Name of the job.
        settings: Values by the dotted names of keys.
        runners: Script of each site by its name; that of all sites under None.
        site_args: Arguments of single sites, as on a shell.
        model: Initial weights, or the factory; None without one.
        initial: Path of a file with initial weights; None without one.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    runners: dict[str | None, ScriptRunner] = field(default_factory=dict)
    site_args: dict[str, str] = field(default_factory=dict)
    model: Weights | FactoryCall | None = None
    initial: str | None = None

    def resolve(
        self,
        clients: Mapping[str, Any],
        write: Callable[[Weights], Path],
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> Job:
        """Resolve the job, as a job file is.

        Args:
            clients: Keys of the section ``clients``.
            write: Function that writes initial weights into a file, and returns its path.
            settings: Further settings, by the dotted name of a key.

        Raises:
            UsageError: A part is missing; the message names each.
            JobError: The job has mistakes; the message names all of them.
        """
        runner = self._runner(_site_names(clients))
        folder = _folder_of(runner.script)
        values = nested({**self._model_keys(folder, write), **self.settings, **settings})
        values = {"name": self.name, **values}
        values.setdefault("clients", {}).update(clients)
        values["train"] = {**values.get("train", {}), **self._train(runner, folder)}
        own = self._own_args()
        if own:
            self._expect_unset("clients.args", "arguments of single sites")
            shared = values["train"].pop("args", {})
            values["clients"]["args"] = _args_by_site(own, shared, clients)
        _set_metric_mode(values)
        return make_job(values, folder, f"the job {self.name}")

    def _runner(self, sites: Sequence[str]) -> ScriptRunner:
        """The script of these sites.

        Raises:
            UsageError: There is no script or no model, or sites have different scripts or none.
        """
        lacks = []
        if not self.runners:
            lacks.append(
                'a training script (train_script="client.py", or '
                'job.to_clients(ScriptRunner("client.py")))'
            )
        if self.model is None and self.initial is None:
            lacks.append(
                'a model (model=..., which is a module, {"class_path": "model.Net"} or '
                '"model:Net", or initial_ckpt=...)'
            )
        if "rounds" not in self.settings:
            lacks.append("a number of rounds (num_rounds=..., or job.to_server(FedAvg(...)))")
        if lacks:
            raise UsageError(f"the job {self.name} lacks {'; and '.join(lacks)}")
        runners = list(self.runners.values())
        first = runners[0]
        for name in ("script", "command", "launch_external_process", "framework"):
            values = sorted({str(getattr(each, name)) for each in runners})
            if len(values) > 1:
                raise UsageError(
                    f"the job {self.name} has sites with {name} {' and '.join(values)}; give all "
                    "the same, and tell them apart by script_args"
                )
        without = (
            [] if None in self.runners else [site for site in sites if site not in self.runners]
        )
        if without:
            raise UsageError(
                f"the job {self.name} has no script for {', '.join(without)}; give one to all "
                "sites (job.to_clients(ScriptRunner(...))), or run it with the others alone"
            )
        return first

    def _model_keys(self, folder: Path, write: Callable[[Weights], Path]) -> dict[str, Any]:
        if isinstance(self.model, Weights):
            checkpoint = None if self.initial is None else folder / self.initial
            written = write(self.model._replace(checkpoint=checkpoint))
            return {"model.initial": str(written.absolute())}
        keys: dict[str, Any] = {} if self.initial is None else {"model.initial": self.initial}
        if self.model is not None:
            keys["model.factory"] = self.model.named
            keys |= {f"model.args.{name}": value for name, value in self.model.args.items()}
        return keys

    def _train(self, runner: ScriptRunner, folder: Path) -> dict[str, Any]:
        train: dict[str, Any] = {"script": runner.script}
        shared = self.runners.get(None)
        if shared is not None and shared.script_args:
            self._expect_unset("train.args", "the script's own arguments")
            train["args"] = shared.script_args
        is_plain = PLAIN_COMMANDS.fullmatch(runner.command.strip()) is not None
        if runner.launch_external_process and not is_plain:
            train["command"] = runner.command
        if FrameworkType(runner.framework) is not FrameworkType.PYTORCH:
            train["exchange_format"] = ExchangeFormat.NUMPY.value
        script = folder / runner.script
        if script.is_file() and any(imports_nvflare(path) for path in own_files(script, folder)):
            train["alias"] = "nvflare"
        return train

    def _expect_unset(self, key: str, other: str) -> None:
        if key in self.settings:
            raise UsageError(f"the job {self.name} has both {key} and {other}; leave one out")

    def _own_args(self) -> dict[str, str]:
        """Arguments of those sites that have their own."""
        given = {site: each.script_args for site, each in self.runners.items() if site is not None}
        return {**given, **self.site_args}

    def known_sites(self, clients: Sequence[str] | int | None) -> list[str] | int:
        """Names or number of the sites."""
        if isinstance(clients, int):
            return clients
        if clients is not None:
            return list(clients)
        own = [*(site for site in self.runners if site is not None), *self.site_args]
        if own:
            return list(dict.fromkeys(own))
        for key in ("clients.count", "clients.min_updates", "clients.per_round"):
            if isinstance(number := self.settings.get(key), int):
                return number
        raise UsageError(
            f"the job {self.name} has no number of clients; give min_clients=..., or name them "
            "where it is run or exported"
        )


def _args_by_site(
    own: Mapping[str, str], shared: str | Mapping[str, Any], clients: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the arguments of all sites by name, where some have theirs instead of the others'.

    Args:
        own: Arguments of those sites, as on a shell.
        shared: Arguments of the others: as on a shell, or by name.
        clients: Keys of the section ``clients``.
    """
    named = by_name(shared, "train_args") if isinstance(shared, str) else dict(shared)
    found = {site: by_name(text, f"the arguments of {site}") for site, text in own.items()}
    # A site that the job does not have is refused with the job.
    return {**dict.fromkeys(_site_names(clients), named), **found} if named else found


def _site_names(clients: Mapping[str, Any]) -> list[str]:
    return clients.get("names") or default_site_names(clients.get("count", 0))


def _set_metric_mode(values: dict[str, Any]) -> None:
    """Set whether the smallest key metric is the best, where that is not set."""
    workflow = values.get("workflow", {})
    metric = workflow.get("args", {}).get("key_metric", Stage().args.key_metric)
    mode = metric_mode(metric, values.get("stop_when"))
    workflow.setdefault("args", {}).setdefault("key_metric_mode", mode)
    values["workflow"] = workflow


def _folder_of(script: str) -> Path:
    """Return the folder in which a job's relative paths start.

    It is the working folder if the script is there, else that of the program that Python runs.
    """
    here = Path.cwd()
    main = getattr(sys.modules["__main__"], "__file__", None)
    if not (here / script).is_file() and main is not None:
        beside = Path(os.path.abspath(main)).parent
        if (beside / script).is_file():
            return beside
    return here
