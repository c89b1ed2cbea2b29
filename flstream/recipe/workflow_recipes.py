"""Recipes of other workflows than federated averaging, with NVFlare's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flstream.recipe.checks import checked
from flstream.recipe.components import ExchangeFormat, FrameworkType, ScriptRunner
from flstream.recipe.fed_job import FedJob
from flstream.recipe.fedavg_recipes import FedAvgRecipe, pass_over
from flstream.recipe.recipes import Recipe, add_cross_site_evaluation


class ScaffoldRecipe(FedAvgRecipe):
    """SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378).

    The script corrects its steps by control variates: see
    :class:`~flstream.client.scaffold.ScaffoldControl`, or NVFlare's ``PTScaffoldHelper``.

    Args:
        **arguments: As of :class:`FedAvgRecipe`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"name": "scaffold", **arguments})
        self.job.set({"workflow.type": "scaffold"})


class CyclicRecipe(FedAvgRecipe):
    """Cyclic weight transfer (Chang et al. 2018, doi:10.1093/jamia/ocy017).

    Args:
        name: Name of the job, and of its run directories.
        order: ``fixed``, ``random``, ``random_without_same_in_a_row``, or a list of sites.
        **arguments: As of :class:`FedAvgRecipe`.
    """

    def __init__(
        self, *, name: str = "cyclic", order: str | Sequence[str] = "fixed", **arguments: Any
    ) -> None:
        super().__init__(name=name, **arguments)
        order = order.lower() if isinstance(order, str) else list(order)
        self.job.set({"workflow.type": "cyclic", "workflow.args.order": order})


class SwarmLearningRecipe(FedAvgRecipe):
    """Swarm learning (Warnat-Herresthal et al. 2021, doi:10.1038/s41586-021-03583-3).

    Args:
        name: Name of the job, and of its run directories.
        start_task_timeout: Seconds in which a site has to acknowledge a task.
        progress_timeout: Seconds after which the run fails if nothing has come of a task.
        do_cross_site_eval: Whether every site scores every other one's model afterwards.
        cross_site_eval_timeout: Seconds that such a scoring may take.
        **arguments: As of :class:`FedAvgRecipe`.

    Raises:
        UsageError: An argument is unknown, or has no counterpart.
    """

    @checked
    def __init__(
        self,
        *,
        name: str = "swarm",
        start_task_timeout: float = 300,
        progress_timeout: float = 3600,
        do_cross_site_eval: bool = False,
        cross_site_eval_timeout: float = 300,
        **arguments: Any,
    ) -> None:
        super().__init__(name=name, **arguments)
        self.job.set(
            {
                "workflow.type": "swarm",
                "workflow.args.start_task_timeout": start_task_timeout,
                "workflow.args.progress_timeout": progress_timeout,
            }
        )
        if do_cross_site_eval:
            add_cross_site_evaluation(self, validation_timeout=cross_site_eval_timeout)


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
        pass_over(type(self).__name__, others)
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
