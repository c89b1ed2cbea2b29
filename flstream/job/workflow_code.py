"""Import and check of the workflows that a job file names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from flstream.errors import UsageError
from flstream.job.code import find, import_once, load
from flstream.job.explain import explain
from flstream.job.problems import Problem, RefusedValueError, given
from flstream.job.workflow_args import DEFINITION, FreeWorkflowArgs, WorkflowArgs

if TYPE_CHECKING:
    from flstream.job.stage import Stage


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
    registry: Mapping[str, str] = importlib.import_module("flstream.workflows.registry").BUILT_IN
    return registry


def find_workflow(kind: str) -> WorkflowCode:
    """Import a workflow, unless this process has it already.

    Args:
        kind: Name of a built-in, or the place of a function in its absolute form.

    Raises:
        RefusedValueError: It cannot be imported, or is not a workflow.
    """
    if place := built_ins().get(kind):
        where, _, name = place.partition(":")
        own: Any = getattr(importlib.import_module(where), name)
        return WorkflowCode(own, getattr(own, DEFINITION), takes_args=True)
    function = find(kind, "function")
    if flaw := _flaw(function):
        hint = f"{kind.rpartition(':')[2]} {flaw}"
        raise RefusedValueError(
            Problem("", given(kind), "a function of (run) or (run, args)", hint)
        )
    takes_args = _takes(function, 2)
    args = FreeWorkflowArgs if takes_args else WorkflowArgs
    return WorkflowCode(function, getattr(function, DEFINITION, args), takes_args)


def load_program(stage: Stage) -> Callable[[Any, WorkflowArgs], Any]:
    """Return the program of a stage, for the process that runs it.

    From this call on, the process can import files beside the program's file.

    Args:
        stage: The stage.

    Returns:
        Function of the run and the arguments, which returns the final model.

    Raises:
        UsageError: The code was changed after the job was loaded, and can no longer be used.
    """
    try:
        code = find_workflow(stage.type)
    except RefusedValueError as error:
        raise _changed("workflow.type", error.problems) from error
    load(stage.program)  # with the files beside it importable from then on

    def program(run: Any, args: WorkflowArgs) -> Any:
        if not code.takes_args:
            return code.function(run)
        if isinstance(args, code.args):
            return code.function(run, args)
        values = args.model_dump()  # which lost their own section when they were pickled
        try:
            args = code.args.model_validate(values)
        except ValidationError as error:
            raise _changed("workflow.args", explain(error, code.args, values)) from error
        return code.function(run, args)

    return program


def program_file(stage: Stage) -> Path:
    """Return the path of the file with a stage's function, to find its lines in a traceback."""
    where = stage.program.rpartition(":")[0]
    return Path(getattr(import_once(where), "__file__", None) or where)


def _changed(key: str, problems: Iterable[Problem]) -> UsageError:
    flaws = "; ".join(str(problem.below(key)) for problem in problems)
    return UsageError(f"the workflow was changed while it was started: {flaws}; start it again")


def _flaw(function: Any) -> str:
    """Return why an object is no workflow, to follow its name; empty if it is one."""
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
