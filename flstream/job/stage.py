"""Stage of a job: one workflow with its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator

from flstream.job.rules import Section
from flstream.job.workflow_args import FreeWorkflowArgs, WorkflowArgs
from flstream.job.workflow_code import (
    DEFAULT_WORKFLOW,
    WorkflowType,
    built_ins,
    find_workflow,
    validate_args,
)


class Stage(Section):
    """What the job does round by round: a workflow, or a list of them, one after another.

    In a list, the keys of one are `workflow[0].type` and so on, also for `--set`; `rounds` counts
    for each of them, and they agree on `key_metric` and `key_metric_mode`.
    """

    type: WorkflowType = Field(default=DEFAULT_WORKFLOW, validate_default=True)
    """The workflow: one that comes with flstream, or a function of your own beside the job file.

    fedavg averages the clients' updates, weighted by number of examples, and cyclic hands the model
    on from client to client. scaffold and feddyn correct for clients whose data differ. With ditto
    each client has a model of its own beside the global one, and with fedper a part of it. swarm
    has a client fold. cross_site has every client score all models once they are trained, and
    evaluate scores one model. A function of (run) or (run, args) is named `file.py:name` or
    `module:name`; its file is imported when the job is loaded.
    """

    args: SerializeAsAny[WorkflowArgs] = Field(default_factory=WorkflowArgs, validate_default=True)
    """Arguments of the workflow, in the section that it declares."""

    @field_validator("type")
    @classmethod
    def _can_be_imported(cls, value: str) -> str:
        find_workflow(value)
        return value

    @field_validator("args", mode="plain")
    @classmethod
    def _as_the_workflow_takes_them(cls, value: Any, info: ValidationInfo) -> Any:
        if "type" not in info.data:
            return value  # the type's mistake is reported; the arguments cannot be checked
        section = find_workflow(info.data["type"]).args
        if isinstance(value, WorkflowArgs):
            value = value.model_dump(exclude_unset=True)
        return validate_args(section, value, (info.context or {}).get("folder"))

    @property
    def program(self) -> str:
        """Place of the workflow's function: `package.module:name` or `/abs/path.py:name`."""
        return built_ins().get(self.type, self.type)

    @property
    def is_own(self) -> bool:
        """Whether the workflow is the user's, and not one that comes with flstream."""
        return self.type not in built_ins()

    @property
    def name(self) -> str:
        """Name of the workflow for messages: `fedavg`, or `relay.py:relay` without a folder."""
        where, colon, name = self.type.rpartition(":")
        return f"{Path(where).name}{colon}{name}"

    @property
    def has_rounds(self) -> bool:
        """Whether the workflow trains in rounds."""
        return find_workflow(self.type).args.has_rounds

    @property
    def collects_models(self) -> bool:
        """Whether the workflow collects the sites' models."""
        return find_workflow(self.type).args.collects_models

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without classes of the user's code, which the unpickling process may lack.

        Their arguments are pickled in a section that accepts any names, and converted to the
        workflow's own section when the program is loaded.
        """
        args = self.args
        if not type(args).__module__.startswith("flstream."):
            args = FreeWorkflowArgs.model_construct(**args.model_dump(mode="json"))
        return _unpickled, (self.type, args)


def _unpickled(kind: str, args: WorkflowArgs) -> Stage:
    return Stage.model_construct(type=kind, args=args)
