"""Recipes and components: NVFlare's names for jobs, arguments and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

from flstream.recipe.arguments import FilterType, JobMetaKey, RecipeArguments, checked, notice
from flstream.recipe.fed_job import FedJob
from flstream.recipe.sim_env import RunResult, SimEnv


class Recipe(FedJob):
    """Job to configure further, run and export.

    Args:
        **arguments: See :class:`~flstream.recipe.arguments.RecipeArguments`.

    Raises:
        UsageError: An argument is unknown, or cannot be converted.
    """

    workflow: ClassVar[str] = "fedavg"
    """Type of the workflow."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Arguments that the recipe has unless they are given."""

    def __init__(self, **arguments: Unpack[RecipeArguments]) -> None:
        values = {"name": self.workflow, "num_rounds": 2, **self.defaults, **arguments}
        super().__init__(values.pop("name"))
        self.configure({"workflow.type": self.workflow})
        self.set_arguments(values)
        if arguments.get("do_cross_site_eval"):
            add_cross_site_evaluation(self, 600, arguments.get("cross_site_eval_timeout", 300))

    @property
    def job(self) -> Self:
        """The recipe's job, an attribute as in NVFlare."""
        return self

    @checked
    def execute(self, env: SimEnv) -> RunResult:
        """Run the job, and return the run once it is finished.

        Raises:
            JobError: The job has mistakes; the message names all of them.
            RunFailedError: The run failed.
            KeyboardInterrupt: It was stopped by Ctrl-C; what it had completed is kept.
        """
        return env.run(self)

    run = execute

    @checked
    def export(self, job_dir: str | Path, env: SimEnv | None = None) -> Path:
        """Write a job folder, with an environment's clients: see :meth:`export_job`.

        Args:
            job_dir: A new or empty folder, or one that was exported before.
            env: The environment; None for ``min_clients``.
        """
        settings = {} if env is None else env.settings
        clients = {key: settings[key] for key in settings if key.startswith("clients.")}
        return self.write(Path(job_dir), clients)

    def add_server_config(
        self, config: Mapping[str, Any], clients: Sequence[str] | None = None
    ) -> None:
        """Set keys of the job, which all sites share: see :meth:`configure`."""
        self.configure(config)

    add_client_config = add_server_config

    def add_server_file(self, file_path: str | Path, clients: Sequence[str] | None = None) -> None:
        """Add a file to the job's folder, which all sites share: see :meth:`to`."""
        self.to_server(file_path)

    add_client_file = add_server_file

    def add_decomposers(self, decomposers: Sequence[Any]) -> None:
        """Print that none is needed: tensors and plain values are known."""
        self.configure({"decomposers": len(decomposers)})

    def enable_log_streaming(self, *file_names: str) -> None:
        """Print that none is needed: each site's log is in the run directory."""
        self.configure({"log_streaming": True})

    @checked
    def add_client_output_filter(
        self,
        filter: str | Mapping[str, Any],
        tasks: Sequence[str] | None = None,
        clients: Sequence[str] | None = None,
    ) -> None:
        """Filter updates before they leave their site: see :meth:`to`."""
        section = {"type": filter} if isinstance(filter, str) else filter
        self.to_clients(section, tasks=tasks, clients=clients)

    @checked
    def add_client_input_filter(
        self,
        filter: str | Mapping[str, Any],
        tasks: Sequence[str] | None = None,
        clients: Sequence[str] | None = None,
    ) -> None:
        """Filter models before a site's code sees them: see :meth:`to`."""
        section = {"type": filter} if isinstance(filter, str) else filter
        kind = FilterType.TASK_DATA
        self.to_clients(section, filter_type=kind, tasks=tasks, clients=clients)

    # Both ends are filtered at the site.
    add_server_input_filter = add_client_output_filter
    add_server_output_filter = add_client_input_filter

    def enable_tensor_streaming(self, **_: Any) -> None:
        """Print that tensor streaming is always on."""
        self.configure(TensorServerStreamer())


class FedAvgRecipe(Recipe):
    """Federated averaging (McMahan et al. 2017, arXiv:1602.05629)."""


class NumpyFedAvgRecipe(Recipe):
    """Federated averaging of NumPy arrays; a lone array is the tensor ``numpy_key``."""

    defaults: ClassVar = {"framework": "numpy"}


class FedProxRecipe(Recipe):
    """FedProx (Li et al. 2020, arXiv:1812.06127); the script adds the proximal term."""

    defaults: ClassVar = {"name": "fedprox", "fedprox_mu": 0.01}


class FedOptRecipe(Recipe):
    """Averaging with a server optimizer (Reddi et al. 2021, arXiv:2003.00295)."""

    defaults: ClassVar = {"name": "fedopt"}


class ScaffoldRecipe(Recipe):
    """SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378)."""

    workflow: ClassVar = "scaffold"


class CyclicRecipe(Recipe):
    """Cyclic weight transfer (Chang et al. 2018, doi:10.1093/jamia/ocy017)."""

    workflow: ClassVar = "cyclic"


class SwarmLearningRecipe(Recipe):
    """Swarm learning (Warnat-Herresthal et al. 2021, doi:10.1038/s41586-021-03583-3)."""

    workflow: ClassVar = "swarm"
    defaults: ClassVar = {"start_task_timeout": 300, "progress_timeout": 3600}


class FedEvalRecipe(Recipe):
    """Evaluation of one model at every site, without any training."""

    workflow: ClassVar = "evaluate"
    defaults: ClassVar = {"name": "eval", "num_rounds": 1, "validation_timeout": 6000}


@checked
def add_experiment_tracking(
    recipe: Recipe,
    tracking_type: str = "tensorboard",
    tracking_config: Mapping[str, Any] | None = None,
    client_side: bool = False,
    server_side: bool = True,
    clients: Sequence[str] | None = None,
) -> None:
    """Track a recipe's runs, with what scripts log through a ``SummaryWriter``.

    There is one tracker, with the values of each site under its name.

    Args:
        recipe: The recipe.
        tracking_type: ``tensorboard``, ``mlflow``, or a class of your own as ``file.py:Class``.
        tracking_config: Keyword arguments of that class.
        client_side: Accepted for NVFlare's sake, like the last two.
        server_side: Likewise.
        clients: Likewise.
    """
    recipe.configure({"tracking.type": tracking_type})
    if tracking_config and ":" in tracking_type:
        recipe.configure({"tracking.args": tracking_config})
    elif tracking_config:
        notice(f"tracking_config is not needed: {tracking_type}'s files are in the run directory")


@checked
def add_cross_site_evaluation(
    recipe: Recipe,
    submit_model_timeout: float = 600,
    validation_timeout: float = 6000,
    participating_clients: Sequence[str] | None = None,
) -> None:
    """Score every model at every site once a recipe's training is over.

    Args:
        recipe: The recipe.
        submit_model_timeout: Seconds that a site may take to submit its model.
        validation_timeout: Seconds that a site may take to score one model.
        participating_clients: Names of the sites that take part; None for all.

    Raises:
        UsageError: The recipe does not train, or was given this already.
    """
    args = {"eval_task_timeout": validation_timeout, "submit_model_timeout": submit_model_timeout}
    sites = {"participating_sites": participating_clients} if participating_clients else {}
    recipe.append_workflow("cross_site", {**args, **sites})


@checked
def add_final_global_evaluation(
    recipe: Recipe,
    participating_clients: Sequence[str] | None = None,
    validation_timeout: float = 6000,
) -> None:
    """Score the final model at every site once a recipe's training is over.

    Args:
        recipe: The recipe.
        participating_clients: Names of the sites that take part; None for all.
        validation_timeout: Seconds that a site may take.

    Raises:
        UsageError: The recipe does not train, or has another such evaluation already.
    """
    sites = {"participating_sites": participating_clients} if participating_clients else {}
    recipe.append_workflow("evaluate", {"eval_task_timeout": validation_timeout, **sites})


@checked
def set_per_site_config(recipe: Recipe, config: Mapping[str, Mapping[str, Any]]) -> None:
    """Give a recipe's sites arguments of their own: see :meth:`FedJob.set_per_site_config`."""
    recipe.set_per_site_config(config)


@checked
def set_recipe_meta(recipe: Recipe, key: JobMetaKey, value: Any) -> None:
    """Print that nothing of a meta file is needed: a simulation has no deployment."""
    notice(f"{key} is not needed, and was left out")


def BaseFedJob(name: str = "fed_job", min_clients: int = 1, **arguments: Any) -> FedJob:
    """Return a job with a model, for NVFlare's programs.

    Args:
        name: Name of the job.
        min_clients: Number of updates that a round needs.
        arguments: See :class:`~flstream.recipe.arguments.RecipeArguments`.
    """
    job = FedJob(name, min_clients)
    job.set_arguments(arguments)
    return job


def FedAvgJob(n_clients: int, num_rounds: int, name: str = "fed_job", **arguments: Any) -> FedJob:
    """Return a job of federated averaging: see :func:`BaseFedJob`."""
    job = BaseFedJob(name, arguments.pop("min_clients", n_clients), **arguments)
    job.to_server({"min_clients": n_clients, "num_rounds": num_rounds})
    return job


def FedAvg(num_clients: int | None = None, num_rounds: int = 5, **arguments: Any) -> dict[str, Any]:
    """Return federated averaging (McMahan et al. 2017), for ``FedJob.to_server``.

    Args:
        num_clients: Number of sites in a round; None for all.
        num_rounds: Number of rounds.
        arguments: See :class:`~flstream.recipe.arguments.RecipeArguments`.
    """
    return {"min_clients": num_clients, "num_rounds": num_rounds, **arguments}


PTFedAvg = FedAvg


@checked
def PTModel(model: Any, initial_ckpt: str | Path | None = None) -> dict[str, Any]:
    """Return the job's initial model, for ``FedJob.to_server``.

    Args:
        model: Factory or instance, as the ``model`` of a recipe.
        initial_ckpt: Path of a file with its weights; None for those of ``model``.
    """
    return {"model": model, "initial_ckpt": initial_ckpt}


@checked
def ScriptRunner(script: str | Path, script_args: str = "", **arguments: Any) -> dict[str, Any]:
    """Return the script of all sites or of one, for ``FedJob.to`` and ``to_clients``.

    Args:
        script: Path of the script.
        script_args: Arguments of the script, words as on a shell.
        arguments: See :class:`~flstream.recipe.arguments.RecipeArguments`.
    """
    return {"train_script": script, "train_args": script_args, **arguments}


def IntimeModelSelector(
    key_metric: str | None = None, negate_key_metric: bool | None = None
) -> dict[str, Any]:
    """Return the choice of the best round, for ``FedJob.to_server``.

    Args:
        key_metric: Metric that decides; None for ``accuracy``.
        negate_key_metric: Whether its smallest value is the best; None for what its name says.
    """
    return {"key_metric": key_metric, "negate_key_metric": negate_key_metric}


def TensorServerStreamer() -> dict[str, Any]:
    """Return nothing that counts: tensors are always streamed."""
    return {"tensor_streaming": True}


TensorClientStreamer = TensorServerStreamer


def PercentilePrivacy(percentile: float = 10, gamma: float = 0.01) -> dict[str, Any]:
    """Return the filter that shares the largest changes (Shokri and Shmatikov 2015).

    Args:
        percentile: Percentile of the absolute changes, from 0 to 100, below which a number stays as
            it is.
        gamma: Most that a number changes, for each step of the update.
    """
    return {"type": "percentile_privacy", "args": {"percentile": percentile, "gamma": gamma}}


def SVTPrivacy(**args: float) -> dict[str, Any]:
    """Return the filter that shares a noisy choice of changes (Li et al. 2019).

    Args:
        args: Numbers by name: ``fraction``, ``epsilon``, ``noise_var``, ``gamma`` and ``tau``, as
            in the job file.
    """
    return {"type": "svt_privacy", "args": args}


@checked
def ExcludeVars(exclude_vars: Sequence[str] | str) -> dict[str, Any]:
    """Return the filter that leaves out tensors.

    Args:
        exclude_vars: List of whole names, or a regular expression that is found in names.
    """
    return {"type": "exclude_vars", "args": {"exclude_vars": exclude_vars}}


@checked
def Gaussian(sigma: float) -> dict[str, Any]:
    """Return the filter that adds Gaussian noise to every number; NVFlare has none.

    Args:
        sigma: Standard deviation of the noise.
    """
    return {"type": "gaussian", "args": {"sigma": sigma}}
