"""Arguments of workflows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from flstream.job.fields import Allowed, Section, Whole
from flstream.job.problems import Problem, RefusedValueError
from flstream.job.typed import FreeSection

if TYPE_CHECKING:
    from flstream.job.clients_section import ClientsSection


class WorkflowArgs(Section):
    """Arguments of the workflow. Every workflow has these four.

    A function of your own adds those of the section that its decorator names. One without a
    decorator takes any others, as they are written; one of (run) alone takes no others.
    """

    has_rounds: ClassVar[bool] = True
    """Whether the workflow trains in rounds, so that `rounds` counts for it."""

    collects_models: ClassVar[bool] = False
    """Whether a workflow of your own calls `run.collect`, for which the last model of each site is
    kept from the first round of the run on. Those that come with flstream need not say so."""

    evaluate: Literal["auto", "task", "received"] = "auto"
    """What scores a model: tasks of their own, or metrics that come with updates.

    task: sites are asked to evaluate the new global model. received: metrics that come with an
    update score the model that the site had received, as in NVFlare. So nothing is sent or trained
    twice, the best model may be the initial one, and the last one has no score. auto is task for
    sites whose code asks in its first task which kind of task it has (is_evaluate, is_train,
    get_task_name, a decorator evaluate, or a learner's method evaluate); received if none asks.
    """

    evaluate_every: Annotated[Whole, Field(ge=0)] = 1
    """With evaluate = task: every so many rounds, and after the last; 0 is never."""

    key_metric: Annotated[str, Field(pattern=r"^\S(.*\S)?$"), Allowed("the name of a metric")] = (
        "accuracy"
    )
    """The metric that decides which round was the best."""

    key_metric_mode: Literal["max", "min"] = "max"
    """Whether the best value of the key metric is the largest or the smallest."""

    def check_clients(self, clients: ClientsSection) -> Iterator[Problem]:
        """Yield the problems of these arguments for a job with these clients.

        A workflow whose arguments depend on the clients overrides this method.

        Args:
            clients: The job's section of clients.

        Yields:
            Problems, with keys relative to the arguments' section.
        """
        yield from ()


class FreeWorkflowArgs(FreeSection, WorkflowArgs):
    """Arguments of a workflow that declares none: the common ones, and any others as written."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        # The argument would be hidden by the section's own attribute of that name.
        taken = [
            name
            for name in self.model_extra or ()
            if name.startswith("_") or hasattr(FreeWorkflowArgs, name)
        ]
        if taken:
            allowed = "another name, since every section has something of that name already"
            raise RefusedValueError(
                *(Problem(name, "the name of an argument", allowed) for name in taken)
            )
        return self


DEFINITION = "__flstream_workflow__"
"""Name of the attribute of a decorated function that holds the section of its arguments."""
