"""Workflows: what a job does round by round, as programs over a federation.

A workflow of your own needs no more than ``from flstream.workflows import workflow, Run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from flstream.aggregation.fold_rule import ServerStep
from flstream.errors import WorkflowError
from flstream.job.stage import DEFINITION, WorkflowArgs
from flstream.server.run import (
    FoldRule,
    GroupUpdate,
    Model,
    Run,
    SiteModel,
    SiteModels,
    SiteScores,
    TensorGroup,
    Update,
    Updates,
)

if TYPE_CHECKING:
    from flstream.server.samplers import Sampler
    from flstream.server.site_history import AskedSite, SamplingHistory

__all__ = [
    "AskedSite",
    "FoldRule",
    "GroupUpdate",
    "Model",
    "Run",
    "Sampler",
    "SamplingHistory",
    "ServerStep",
    "SiteModel",
    "SiteModels",
    "SiteScores",
    "TensorGroup",
    "Update",
    "Updates",
    "WorkflowArgs",
    "nesterov",
    "workflow",
]


def __getattr__(name: str) -> Any:
    """Import the names that only a sampler of one's own needs."""
    if name not in ("AskedSite", "Sampler", "SamplingHistory"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flstream.server import samplers

    return getattr(samplers, name)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def nesterov(learning_rate: float, momentum: float) -> ServerStep | None:
    """Make DiLoCo's outer optimizer (Douillard et al. 2023, arXiv:2311.08105), for ``run.fold``.

    Args:
        learning_rate: Server learning rate, above 0; 0.7 in the paper.
        momentum: Share of Nesterov's momentum that a fold keeps, from 0 to below 1; 0.9 there.

    Returns:
        The step; None where the next model is the aggregate itself: 1 and 0.

    Raises:
        WorkflowError: A number is out of its range.
    """
    if not (learning_rate > 0 and 0 <= momentum < 1):
        raise WorkflowError(
            f"nesterov({learning_rate!r}, {momentum!r}): the learning rate is above 0, and the "
            "momentum from 0 to below 1"
        )
    from flstream.aggregation import optimizers  # imports NumPy, and validating a job needs none

    return optimizers.nesterov(learning_rate, momentum)


def workflow(
    name: str, args: type[WorkflowArgs] = WorkflowArgs
) -> Callable[[FunctionT], FunctionT]:
    """Declare a function as a workflow, with its name and arguments in a job file.

    The function itself stays as it is.

    Args:
        name: Name of the workflow.
        args: Section that defines its arguments, with a type, a default and a meaning each.
    """
    if not isinstance(name, str):
        raise TypeError('a workflow has a name: write @workflow("mine") above its function')
    if not (isinstance(args, type) and issubclass(args, WorkflowArgs)):
        raise TypeError(
            f"the arguments of the workflow {name} are {args!r}, and must be a class derived from "
            "flstream.workflows.WorkflowArgs"
        )

    def define(function: FunctionT) -> FunctionT:
        setattr(function, DEFINITION, args)
        return function

    return define
