"""Import and check of the workflows that a job file names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import ValidationError

from flstream.errors import UsageError
from flstream.job.code import find, import_once, load
from flstream.job.explain import explain
from flstream.job.files import CodeName
from flstream.job.problems import Problem, RefusedValueError, given
from flstream.job.workflow_args import (
    DEFINITION,
    FreeWorkflowArgs,
    WorkflowArgs,
    WorkflowDefinition,
)

if TYPE_CHECKING:
    from flstream.job.stage import Stage

DEFAULT_WORKFLOW = "fedavg"

Program = Callable[[Any, WorkflowArgs], Any]
"""Workflow as a function of the run and the arguments, which returns the final model."""


class WorkflowCode(NamedTuple):
    """Function of a workflow, imported and checked.

    Attributes:
        function: Function of (run) or (run, args).
        args: Section that defines its arguments.
        takes_args: Whether it is a function of (run, args).
    """

    function: Callable[..., Any]
    args: type[WorkflowArgs]
    takes_args: bool


def built_ins() -> Mapping[str, str]:
    """Return the built-in workflows: `package.module:name` of each function by workflow name."""
    # Imported on demand, since the package of workflows is above this one.
    found: Mapping[str, str] = importlib.import_module("flstream.workflows.registry").BUILT_IN
    return found


def built_in_args(name: str) -> type[WorkflowArgs]:
    """Return the section of a built-in workflow's arguments."""
    return find_workflow(name).args


WorkflowType = Annotated[str, CodeName("function", built_ins)]
"""Name of a built-in workflow, or a function in a file or a module."""


def find_workflow(kind: str) -> WorkflowCode:
    """Import a workflow, unless this process has it already.

    Args:
        kind: Type of the workflow, as `WorkflowType` resolves it.

    Raises:
        RefusedValueError: It cannot be imported, or is not a workflow.
    """
    program = built_ins().get(kind, kind)
    name = program.rpartition(":")[2]
    return _checked(kind, name, find(program, "function"))


def load_program(stage: Stage) -> Program:
    """Return the program of a stage, for the process that runs it.

    From this call on, the process can import files beside the program's file.

    Args:
        stage: The stage.

    Raises:
        UsageError: The code was changed after the job was loaded, and can no longer be used.
    """
    try:
        code = find_workflow(stage.type)
    except RefusedValueError as error:
        raise _unusable("workflow.type", error) from error
    load(stage.program)  # with the files beside it importable from then on

    def program(run: Any, args: WorkflowArgs) -> Any:
        return code.function(run, _as(code.args, args)) if code.takes_args else code.function(run)

    return program


def program_file(stage: Stage) -> Path:
    """Return the path of the file with a stage's function, to find its lines in a traceback."""
    where = stage.program.rpartition(":")[0]
    return Path(getattr(import_once(where), "__file__", None) or where)


def validate_args(section: type[WorkflowArgs], values: Any, folder: Path | None) -> WorkflowArgs:
    """Return the arguments of a workflow.

    Args:
        section: Section that defines them.
        values: Values as a job file gives them.
        folder: Folder of the job file; None for the working directory.

    Raises:
        RefusedValueError: There are mistakes.
    """
    try:
        return section.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        raise RefusedValueError(*explain(error, section, values)) from None


def _as(section: type[WorkflowArgs], args: WorkflowArgs) -> WorkflowArgs:
    """Return arguments in their own section, which they may have lost when they were pickled."""
    if isinstance(args, section):
        return args
    try:
        return validate_args(section, args.model_dump(), None)
    except RefusedValueError as error:
        raise _unusable("workflow.args", error) from error


def _unusable(key: str, error: RefusedValueError) -> UsageError:
    found = "; ".join(str(problem.below(key)) for problem in error.problems)
    return UsageError(f"the workflow was changed while it was started: {found}; start it again")


def _checked(kind: str, name: str, found: Any) -> WorkflowCode:
    """Return an object that the job file names as a workflow, if it is one."""
    if not isinstance(found, FunctionType):
        a_kind = "a class" if isinstance(found, type) else f"of the type {type(found).__name__}"
        raise _no_workflow(kind, f"{name} is {a_kind}")
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise _no_workflow(kind, f"{name} is asynchronous; write it with a plain def")
    if inspect.isgeneratorfunction(found):
        raise _no_workflow(kind, f"{name} is a generator; return the model, and yield nothing")
    takes_args = _takes(found, 2)
    if not takes_args and not _takes(found, 1):
        raise _no_workflow(kind, f"{name} takes {inspect.signature(found)}")
    definition = getattr(found, DEFINITION, None)
    if not isinstance(definition, WorkflowDefinition):
        return WorkflowCode(found, FreeWorkflowArgs if takes_args else WorkflowArgs, takes_args)
    args: Any = definition.args
    if not (isinstance(args, type) and issubclass(args, WorkflowArgs)):
        shown = args.__name__ if isinstance(args, type) else repr(args)
        message = f"{given(kind)}, whose decorator has {shown} as the section of its arguments"
        raise RefusedValueError(
            Problem("", message, "a class derived from flstream.workflows.WorkflowArgs")
        )
    return WorkflowCode(found, args, takes_args)


def _takes(function: FunctionType, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _no_workflow(kind: str, hint: str) -> RefusedValueError:
    return RefusedValueError(Problem("", given(kind), "a function of (run) or (run, args)", hint))
