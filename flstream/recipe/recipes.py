"""Recipes, which are jobs with NVFlare's arguments, and what can be added to any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job.problems import did_you_mean
from flstream.recipe.checks import checked, notice
from flstream.recipe.components import say_that_streaming_is_on
from flstream.recipe.fed_job import FedJob
from flstream.recipe.filters import check_use
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
        hint = did_you_mean(tracking_type, known) or f"it must be {', '.join(known)} or a class"
        raise UsageError(f"there is no tracker {tracking_type}; {hint}")
    if tracking_config and ":" not in tracking_type:
        notice(f"tracking_config is not needed: {tracking_type}'s files are in the run directory")
        tracking_config = None
    recipe.job.set({"tracking.type": tracking_type, "tracking.args": tracking_config})


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
