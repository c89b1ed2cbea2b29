"""Stage of a job: one workflow with its arguments, and the import of its function."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from flstream.errors import UsageError
from flstream.job.aggregation_section import METHODS
from flstream.job.clients_section import ClientsSection
from flstream.job.code import find, import_once, load
from flstream.job.fields import Allowed, Section, Whole
from flstream.job.files import code_name
from flstream.job.keys import explain
from flstream.job.problems import Problem, RefusedValueError, given_clause
from flstream.job.typed import AnySection, FreeSection, Sections, TypedSection


class WorkflowArgs(Section):
    """Arguments of the workflow. Every workflow has these four.

    A function of your own adds those of the section that its decorator names. One without a
    decorator takes any others, as they are written; one of (run) alone takes no others.
    """

    # At once, since a user's file may be another one by the time that somebody asks, or gone.
    model_config = ConfigDict(use_attribute_docstrings=True)

    has_rounds: ClassVar[bool] = True
    """Whether the workflow trains in rounds, so that `rounds` counts for it."""

    collects_models: ClassVar[bool] = False
    """Whether a workflow of your own calls `run.collect`, for which the last model of each site is
    kept from the first round of the run on. Those that come with flstream need not say so."""

    evaluate: Literal["auto", "task", "received"] = "auto"
    """What scores a model: tasks of their own, or metrics that come with updates.

    task: sites are asked to evaluate the new global model. received: metrics that come with an
    update score the model that the site had received, as in NVFlare. So nothing is sent or trained
    twice, the best model may be the initial one, and the final model gets no score, since no site
    receives it. auto is task for sites whose code asks in its first task which kind of task it has
    (is_evaluate, is_train, get_task_name, a decorator evaluate, or a learner's method evaluate);
    received if none asks.
    """

    evaluate_every: Annotated[Whole, Field(ge=0)] = 1
    """Models are scored every so many rounds, and after the last; 0 is never.

    With evaluate = received it has no effect.
    """

    key_metric: Annotated[str, Field(pattern=r"^\S(.*\S)?$"), Allowed("the name of a metric")] = (
        "accuracy"
    )
    """The metric that decides which round was the best."""

    key_metric_mode: Literal["max", "min"] = "max"
    """Whether the best value of the key metric is the largest or the smallest."""

    keeps_none_with: ClassVar[str] = ""
    """Setting with which a workflow that keeps updates keeps none; empty for no such setting."""

    def kept_updates(self, rounds: int, cohort: int) -> int:
        """Return how many updates of a run stay in files until it ends, beside those in waiting.

        Args:
            rounds: Number of its rounds.
            cohort: Number of sites that train in one.
        """
        return 0

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


class WorkflowCode(NamedTuple):
    """Function of (run) or (run, args) of a workflow, and its arguments' section."""

    function: Callable[..., Any]
    args: type[WorkflowArgs]
    takes_args: bool


def built_ins() -> Mapping[str, str]:
    """Return the place of each built-in workflow, `package.module:name`, by its name."""
    # Imported on demand, since the package of workflows is above this one.
    registry: Mapping[str, str] = importlib.import_module("flstream.workflows.registry").BUILT_IN
    return registry


def find_workflow(kind: str) -> WorkflowCode:
    """Import a workflow, unless this process has imported it already."""
    function = find(built_ins().get(kind, kind), "function")
    if flaw := _flaw(function):
        hint = f"{kind.rpartition(':')[2]} {flaw}"
        raise RefusedValueError(
            Problem("", given_clause(kind), "a function of (run) or (run, args)", hint)
        )
    takes_args = _takes(function, 2)
    args = FreeWorkflowArgs if takes_args else WorkflowArgs
    return WorkflowCode(function, getattr(function, DEFINITION, args), takes_args)


def _flaw(function: Any) -> str:
    """Explain why an object is no workflow, after its name; empty if it is one."""
    if not isinstance(function, FunctionType):
        is_class = isinstance(function, type)
        return "is a class" if is_class else f"is of the type {type(function).__name__}"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is asynchronous; write it with a plain def"
    if inspect.isgeneratorfunction(function):
        return "is a generator; return the model, and yield nothing"
    if not (_takes(function, 1) or _takes(function, 2)):
        return f"takes {inspect.signature(function)}"
    return ""


def _takes(function: FunctionType, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _can_be_imported(kind: str) -> str:
    find_workflow(kind)
    return kind


_SERVER_OPTIMIZER = "it is fedavg with a server_optimizer"
# Algorithms that are settings of a workflow.
_ELSEWHERE = {
    "fedprox": "it is fedavg with workflow.args.fedprox_mu",
    **{name: f"it is aggregation.method = {name}" for name in METHODS},
    "fedopt": _SERVER_OPTIMIZER,
    "fedadam": _SERVER_OPTIMIZER,
    "fedyogi": _SERVER_OPTIMIZER,
    "fedadagrad": _SERVER_OPTIMIZER,
    "fedavgm": _SERVER_OPTIMIZER,
    "nesterov": _SERVER_OPTIMIZER,
}


class Stage(TypedSection):
    """Work of the job, round by round: a workflow, or a list of them, one after another.

    In a list, the keys of one are `workflow[0].type` and so on, also for `--set`; `rounds` counts
    for each of them, and they agree on `key_metric` and `key_metric_mode`.
    """

    type: Annotated[
        str, *code_name("function", built_ins, _ELSEWHERE), AfterValidator(_can_be_imported)
    ] = "fedavg"
    """The workflow: one that comes with flstream, or a function of your own beside the job file.

    docs/workflows.md says what each is for. A function of (run) or (run, args) is named
    `file.py:name` or `module:name`; its file is imported when the job is loaded.
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
    def program_file(self) -> Path:
        """Path of the file with the function, to find its lines in a traceback."""
        where = self.program.rpartition(":")[0]
        return Path(getattr(import_once(where), "__file__", None) or where)

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
        """Whether the workflow declares that it collects the sites' models."""
        return find_workflow(self.type).args.collects_models

    def load_program(self) -> Callable[[Any], Any]:
        """Return the program, a function of the run, for the process that runs it.

        From this call on, the process can import files beside the program's file.

        Raises:
            UsageError: The code was changed after the job was loaded, and can no longer be used.
        """
        values = {"type": self.type, "args": self.args.model_dump()}
        try:
            # The arguments have lost their own section where the stage was pickled.
            stage = Stage.model_validate(values)
        except ValidationError as error:
            flaws = (str(problem.below("workflow")) for problem in explain(error, Stage, values))
            what = f"the workflow was changed while it was started: {'; '.join(flaws)}"
            raise UsageError(f"{what}; start it again") from error
        code = find_workflow(self.type)
        load(self.program)
        return lambda run: code.function(run, *([stage.args] if code.takes_args else []))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without classes of user code, which other processes may lack.

        Their arguments are pickled in a section that accepts any names, and converted to the
        workflow's own section when the program is loaded.
        """
        args = self.args
        if not type(args).__module__.startswith("flstream."):
            args = FreeWorkflowArgs.model_construct(**args.model_dump(mode="json"))
        return partial(Stage.model_construct, type=self.type, args=args), ()
