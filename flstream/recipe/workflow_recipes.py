"""Recipes of other workflows than federated averaging, with NVFlare's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flstream.recipe.checked import checked
from flstream.recipe.recipes import FedAvgRecipe, add_cross_site_evaluation


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
