"""All keys of the job file, with those of its workflows' arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from flstream.job.free_values import PlainValue
from flstream.job.job import Job
from flstream.job.key import WORKFLOW, Key, keys_at, keys_of, named, workflow_name
from flstream.job.problems import ask_for
from flstream.job.stage import Stage
from flstream.job.workflow_args import FreeWorkflowArgs, WorkflowArgs
from flstream.job.workflow_code import DEFAULT_WORKFLOW, built_in_args, built_ins


class StageShape(NamedTuple):
    """Arguments of a workflow of a job.

    Attributes:
        args: Section that defines the arguments.
        free: Names of further arguments that the job file gives.
    """

    args: type[WorkflowArgs]
    free: Sequence[str] = ()


def job_keys(job: Job | None = None) -> dict[str, Key]:
    """Return every key of the job file by its dotted name, in the order of definition.

    Args:
        job: Job whose workflows' arguments are included; None for those of the default workflow.
    """
    if job is None:
        return _default_keys()
    return keys_with([StageShape(type(each.args), _free(each.args)) for each in job.stages])


def keys_in(values: Mapping[str, Any]) -> dict[str, Key]:
    """Return the keys of a job file, without importing the code that it names.

    The arguments of a workflow that is not built in are taken as written.

    Args:
        values: Values of the job file, as written.
    """
    return keys_with([_shape_in(section) for section in workflow_sections(values)])


def keys_with(stages: Sequence[StageShape]) -> dict[str, Key]:
    """Return every key of a job file with workflows of these arguments, by its dotted name."""
    return named(_keys(stages))


def workflow_sections(values: Mapping[str, Any]) -> list[Any]:
    """Return the workflow sections that a job file gives, as written; one empty one by default."""
    given = values.get(WORKFLOW, {})
    return given if isinstance(given, list) and given else [given]


@cache
def _default_keys() -> dict[str, Key]:
    return keys_with([StageShape(built_in_args(DEFAULT_WORKFLOW))])


def _keys(stages: Sequence[StageShape]) -> Iterator[Key]:
    for name, field in Job.model_fields.items():
        if name != "stages":
            yield from keys_at(field, (name,))
            continue
        for index, shape in enumerate(stages):
            yield from _stage_keys(workflow_name(index, len(stages)), shape)


def _stage_keys(section: str, shape: StageShape) -> Iterator[Key]:
    yield from keys_at(Stage.model_fields["type"], (section, "type"))
    yield from keys_of(shape.args, (section, "args"))
    for name in shape.free:
        meaning = "An argument of the workflow, as written."
        yield Key((section, "args", name), PlainValue, False, None, meaning)


def _free(args: WorkflowArgs) -> Sequence[str]:
    return list(args.model_extra or ())


def _shape_in(section: Any) -> StageShape:
    values = section if isinstance(section, Mapping) else {}
    kind = values.get("type", DEFAULT_WORKFLOW)
    if kind in list(built_ins()):
        return StageShape(built_in_args(kind))
    args = values.get("args")
    names = args if isinstance(args, Mapping) else {}
    return StageShape(
        FreeWorkflowArgs, [name for name in names if name not in FreeWorkflowArgs.model_fields]
    )


def section_names(keys: Iterable[Key]) -> tuple[str, ...]:
    """Return the dotted names of the keys' sections: `clients`, ..., `workflow.args`."""
    paths = (key.path[:end] for key in keys for end in range(1, len(key.path)))
    return tuple(dict.fromkeys(".".join(path) for path in paths))


def nearest_keys(unknown: str, keys: Mapping[str, Key] | None = None) -> tuple[str, ...]:
    """Return the keys or sections that an unknown key was most likely meant to be.

    In order: the same name in another section, a longer name that contains it anywhere
    (`chunk_size`), a near name in the same section, a near name anywhere.

    Args:
        unknown: Dotted name of the unknown key.
        keys: Keys of the job, by dotted name; None for those of a job with the default workflow.
    """
    section, _, name = unknown.rpartition(".")
    keys = job_keys() if keys is None else keys
    known = [*keys, *section_names(keys.values())]
    last_part = {key: key.rpartition(".")[2] for key in known}

    if same := tuple(key for key in known if last_part[key] == name):
        return same
    siblings = {last_part[key]: key for key in known if key.rpartition(".")[0] == section}
    if longer := tuple(key for key in known if len(name) > 3 and name in last_part[key]):
        return longer
    if near := get_close_matches(name, siblings, n=1, cutoff=0.6):
        return (siblings[near[0]],)
    near = get_close_matches(name, last_part.values(), n=1, cutoff=0.7)
    return tuple(key for key in known if last_part[key] in near)


def question_about(unknown: str, keys: Mapping[str, Key] | None = None) -> str:
    """Return a question that suggests the keys nearest to an unknown one; empty if none is near."""
    return ask_for(nearest_keys(unknown, keys))
