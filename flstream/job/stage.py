"""Stage of a job: one workflow with its arguments."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny

from flstream.job.files import code_name
from flstream.job.typed import AnySection, Sections, TypedSection
from flstream.job.workflow_args import FreeWorkflowArgs, WorkflowArgs
from flstream.job.workflow_code import built_ins, find_workflow


def _can_be_imported(kind: str) -> str:
    find_workflow(kind)
    return kind


class Stage(TypedSection):
    """Work of the job, round by round: a workflow, or a list of them, one after another.

    In a list, the keys of one are `workflow[0].type` and so on, also for `--set`; `rounds` counts
    for each of them, and they agree on `key_metric` and `key_metric_mode`.
    """

    type: Annotated[str, *code_name("function", built_ins), AfterValidator(_can_be_imported)] = (
        "fedavg"
    )
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

    @classmethod
    def built_in(cls) -> Sections:
        """Return the sections of the arguments of the built-in workflows."""
        return {name: find_workflow(name).args for name in built_ins()}

    @classmethod
    def section_of(cls, kind: str) -> AnySection:
        """Return the section of the arguments of a workflow, after its import."""
        return find_workflow(kind).args

    @property
    def program(self) -> str:
        """Place of the workflow's function: `package.module:name` or `/abs/path.py:name`."""
        return built_ins().get(self.type, self.type)

    @property
    def is_own(self) -> bool:
        """Whether the workflow is the user's, and not one that comes with flstream."""
        return self.type not in built_ins()

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
