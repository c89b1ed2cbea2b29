"""Recipes: jobs of a known shape, with NVFlare's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job.aggregation_method import BuiltInMethod
from flstream.recipe.checked import checked
from flstream.recipe.components import (
    ExchangeFormat,
    FedAvg,
    FrameworkType,
    ScriptRunner,
    TransferType,
    say_that_streaming_is_on,
)
from flstream.recipe.fed_job import FedJob
from flstream.recipe.filters import check_use
from flstream.recipe.notices import notice
from flstream.recipe.nvflare_names import UNNEEDED_ARGUMENTS
from flstream.recipe.run_result import RunResult
from flstream.recipe.sim_env import SimEnv

_SITE_KEYS = ("train_args", "script_args")


class Recipe:
    """A job that can be configured further, run and exported.

    Args:
        job: The job.

    Attributes:
        job: The job.
    """

    def __init__(self, job: FedJob) -> None:
        self.job = job

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.name

    @checked
    def execute(self, env: SimEnv) -> RunResult:
        """Run the job.

        Returns:
            The run, once it is finished.

        Raises:
            JobError: The job has mistakes; the message names all of them.
            RunFailedError: The run failed.
            KeyboardInterrupt: It was stopped by Ctrl-C; what it had completed is kept.
        """
        return env.run(self.job)

    run = execute

    @checked
    def export(self, job_dir: str | Path, env: SimEnv | None = None) -> Path:
        """Write a job folder that ``flstream simulate`` runs to the same bits.

        Args:
            job_dir: A new or empty folder, or one that was exported before.
            env: Environment whose clients the job is to have; None for ``min_clients``.

        Returns:
            The path of the folder.
        """
        return self.job.export(job_dir, None if env is None else env.keys)

    def add_server_config(self, config: Mapping[str, Any]) -> None:
        """Set keys of the job: see :meth:`~flstream.recipe.fed_job.FedJob.configure`."""
        self.job.configure(config)

    def add_client_config(self, config: Mapping[str, Any]) -> None:
        """Set keys of the job, which has one file for the server and its sites."""
        self.job.configure(config)

    @checked
    def add_client_output_filter(
        self,
        filter: Any,
        tasks: Sequence[str] | None = None,
        clients: Sequence[str] | None = None,
    ) -> None:
        """Filter updates before they leave their site (``filters.up``).

        Args:
            filter: A filter of :mod:`flstream.recipe`; or a job file's, as a name or a section.
            tasks: Names of its tasks, ``train`` among them; None for all.
            clients: None, since the filters of a job are those of all sites.
        """
        check_use(tasks, clients)
        self.job.add_filter("up", filter)

    @checked
    def add_client_input_filter(
        self,
        filter: Any,
        tasks: Sequence[str] | None = None,
        clients: Sequence[str] | None = None,
    ) -> None:
        """Filter models before a site's code sees them (``filters.down``).

        See :meth:`add_client_output_filter` for the arguments.
        """
        check_use(tasks, clients)
        self.job.add_filter("down", filter)

    @checked
    def add_server_input_filter(self, filter: Any, tasks: Sequence[str] | None = None) -> None:
        """Filter updates; it is done at the sites: see :meth:`add_client_output_filter`."""
        check_use(tasks)
        self.job.add_filter("up", filter)

    @checked
    def add_server_output_filter(self, filter: Any, tasks: Sequence[str] | None = None) -> None:
        """Filter models for sites; it is done there: see :meth:`add_client_input_filter`."""
        check_use(tasks)
        self.job.add_filter("down", filter)

    def enable_tensor_streaming(self) -> None:
        """Say that tensor streaming is on, as it always is."""
        say_that_streaming_is_on()

    @checked
    def set_per_site_config(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Give sites arguments of their own, instead of those of the others.

        Args:
            config: By site, ``{"train_args": "--data a.csv"}``.

        Raises:
            UsageError: Something else is given for a site.
        """
        for site, values in config.items():
            for key, value in values.items():
                if key not in _SITE_KEYS:
                    raise UsageError(
                        f"{key} is given for {site}; a site of its own has train_args alone, so "
                        "give the others for all sites"
                    )
                self.job.set_site_args(site, value)


class FedAvgRecipe(Recipe):
    """Federated averaging (McMahan et al. 2017, arXiv:1602.05629).

    Args:
        name: Name of the job, and of its run directories.
        model: A torch module, whose weights are the initial ones; a dict of tensors;
            ``{"class_path": "model.Net", "args": {...}}``, ``"module:callable"`` or a function of a
            file, which each run calls in a process of its own.
        initial_ckpt: Path of a file with initial weights.
        min_clients: Number of sites that a round samples, as in NVFlare; None for all of them.
        num_rounds: Number of rounds.
        train_script: Path of the script that each site runs, from the working folder or from the
            folder of the program itself.
        train_args: Its arguments, as on a shell; or values by name.
        launch_external_process: Whether ``command`` starts it.
        command: Launcher, such as ``torchrun --nproc_per_node=2``.
        server_expected_format: Accepted for NVFlare's sake: tensors travel as bytes.
        params_transfer_type: See :class:`~flstream.recipe.components.TransferType`.
        aggregator: Name of a method that comes with flstream, such as ``median``; None for the
            mean. One of your own is ``aggregation.method`` in ``config``.
        per_site_config: See :meth:`Recipe.set_per_site_config`.
        key_metric: Metric that decides which round is the best. Its smallest value is the best if
            ``stop_cond`` has it below a number, or its name says loss or perplexity.
        stop_cond: Condition that ends the job early, such as ``accuracy >= 0.97``.
        patience: Number of evaluations without a new best one that ends the job early.
        exclude_vars: Regular expression, or several, of tensors that keep their value.
        aggregation_weights: Factors of sites' weights in the mean, by site.
        initial_model: An older spelling of ``model``.
        framework: What the script computes with; with NumPy it receives arrays.
        config: Further keys of the job, by dotted name, such as ``{"seed": 7}``.
        **others: Arguments of NVFlare's that are not needed here, which a line says.

    Raises:
        UsageError: An argument is unknown, or has no counterpart.
    """

    @checked
    def __init__(
        self,
        *,
        name: str = "fedavg",
        model: Any = None,
        initial_ckpt: str | None = None,
        min_clients: int | None = None,
        num_rounds: int = 2,
        train_script: str | Path | None = None,
        train_args: str | Mapping[str, Any] = "",
        launch_external_process: bool = False,
        command: str = "python3 -u",
        server_expected_format: ExchangeFormat = ExchangeFormat.NUMPY,
        params_transfer_type: TransferType = TransferType.FULL,
        aggregator: BuiltInMethod | None = None,
        per_site_config: Mapping[str, Mapping[str, Any]] | None = None,
        key_metric: str | None = None,
        stop_cond: str | None = None,
        patience: int | None = None,
        exclude_vars: str | Sequence[str] | None = None,
        aggregation_weights: Mapping[str, float] | None = None,
        initial_model: Any = None,
        framework: FrameworkType = FrameworkType.PYTORCH,
        config: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(FedJob(name))
        _pass_over(type(self).__name__, others)
        if model is not None and initial_model is not None:
            raise UsageError("model and initial_model are both given; leave out initial_model")
        job = self.job
        job.to_server(
            FedAvg(
                num_clients=min_clients,
                num_rounds=num_rounds,
                key_metric=key_metric,
                stop_cond=stop_cond,
                patience=patience,
                exclude_vars=exclude_vars,
                aggregation_weights=aggregation_weights,
            )
        )
        job.set({"aggregation.method": aggregator})
        job.set_model(initial_model if model is None else model, initial_ckpt)
        if train_script is not None:
            is_text = isinstance(train_args, str)
            job.to_clients(
                ScriptRunner(
                    str(train_script),
                    train_args if isinstance(train_args, str) else "",
                    launch_external_process=launch_external_process,
                    command=command,
                    framework=framework,
                    server_expected_format=server_expected_format,
                    params_transfer_type=params_transfer_type,
                )
            )
            job.set({"train.args": None if is_text else train_args})
        elif train_args or launch_external_process:
            raise UsageError("train_args or a launcher is given without train_script; give it, too")
        self.set_per_site_config(per_site_config or {})
        job.configure(config or {})


class NumpyFedAvgRecipe(FedAvgRecipe):
    """Federated averaging of NumPy arrays: see :class:`FedAvgRecipe`.

    Args:
        model: An array or a nested list, which is the array ``numpy_key``; or a dict of arrays.
        **arguments: As of :class:`FedAvgRecipe`.
    """

    def __init__(self, *, model: Any = None, **arguments: Any) -> None:
        super().__init__(model=model, **{"framework": FrameworkType.NUMPY, **arguments})


@checked
def add_experiment_tracking(
    recipe: Recipe,
    tracking_type: str = "tensorboard",
    tracking_config: Mapping[str, Any] | None = None,
) -> None:
    """Have a recipe's runs tracked, with what scripts log through a ``SummaryWriter``.

    Args:
        recipe: The recipe.
        tracking_type: ``tensorboard``, ``mlflow``, or a class of your own as ``file.py:Class``.
        tracking_config: Keyword arguments of that class.

    Raises:
        UsageError: There is no such tracker.
    """
    known = ("tensorboard", "mlflow")
    if tracking_type not in known and ":" not in tracking_type:
        near = get_close_matches(tracking_type, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it must be {', '.join(known)} or a class"
        raise UsageError(f"there is no tracker {tracking_type}; {hint}")
    if tracking_config and ":" not in tracking_type:
        notice(f"tracking_config is not needed: {tracking_type}'s files are in the run directory")
        tracking_config = None
    recipe.job.set({"tracking.type": tracking_type, "tracking.args": tracking_config})


class FedEvalRecipe(Recipe):
    """Evaluation of one model at every site, without any training.

    Args:
        name: Name of the job, and of its run directories.
        model: As of :class:`FedAvgRecipe`; None where the checkpoint alone makes the model.
        eval_ckpt: Path of the file with the weights to score; None for those that the model has.
        min_clients: Number of sites.
        eval_script: Path of the script that each site runs; it answers evaluations.
        eval_args: Its arguments, as on a shell.
        validation_timeout: Seconds that a site may take.
        launch_external_process: Whether ``command`` starts the script.
        command: Launcher, such as ``torchrun --nproc_per_node=2``.
        server_expected_format: Accepted for NVFlare's sake: tensors travel as bytes.
        per_site_config: See :meth:`Recipe.set_per_site_config`.
        framework: What the script computes with; with NumPy it receives arrays.
        config: Further keys of the job, by dotted name, such as ``{"seed": 7}``.
        **others: Arguments of NVFlare's that are not needed here, which a line says.

    Raises:
        UsageError: An argument is unknown, or has no counterpart.
    """

    @checked
    def __init__(
        self,
        *,
        name: str = "eval",
        model: Any = None,
        eval_ckpt: str | Path | None = None,
        min_clients: int | None = None,
        eval_script: str | Path,
        eval_args: str = "",
        validation_timeout: float = 6000,
        launch_external_process: bool = False,
        command: str = "python3 -u",
        server_expected_format: ExchangeFormat = ExchangeFormat.NUMPY,
        per_site_config: Mapping[str, Mapping[str, Any]] | None = None,
        framework: FrameworkType = FrameworkType.PYTORCH,
        config: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(FedJob(name, min_clients))
        _pass_over(type(self).__name__, others)
        job = self.job
        job.set(
            {
                "rounds": 1,
                "workflow.type": "evaluate",
                "workflow.args.eval_task_timeout": validation_timeout,
            }
        )
        job.set_model(model, None if eval_ckpt is None else str(eval_ckpt))
        job.to_clients(
            ScriptRunner(
                str(eval_script),
                eval_args,
                launch_external_process=launch_external_process,
                command=command,
                framework=framework,
                server_expected_format=server_expected_format,
            )
        )
        self.set_per_site_config(per_site_config or {})
        job.configure(config or {})


@checked
def add_cross_site_evaluation(
    recipe: Recipe,
    submit_model_timeout: float = 600,
    validation_timeout: float = 6000,
    participating_clients: Sequence[str] | None = None,
) -> None:
    """Have every site score every model once a recipe's training is over.

    Args:
        recipe: The recipe.
        submit_model_timeout: Seconds that a site may take to submit its model.
        validation_timeout: Seconds that a site may take to score one model.
        participating_clients: Names of the sites that take part; None for all.

    Raises:
        UsageError: The recipe does not train, or was given this already.
    """
    recipe.job.add_cross_site(
        {
            "submit_model_timeout": submit_model_timeout,
            "eval_task_timeout": validation_timeout,
            "participating_sites": participating_clients and list(participating_clients),
        }
    )


def _pass_over(recipe: str, others: Mapping[str, Any]) -> None:
    for name in others:
        if name not in UNNEEDED_ARGUMENTS:
            near = get_close_matches(name, FedAvgRecipe.__init__.__annotations__, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; docs/python.md lists them"
            raise UsageError(f"{recipe} has no argument {name}{hint}")
        notice(f"{name} is not needed: {UNNEEDED_ARGUMENTS[name]}")
