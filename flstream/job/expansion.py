"""Short forms of a job file's workflows, written out before the job is checked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flstream.job.key import WORKFLOW
from flstream.job.problems import RefusedValueError
from flstream.job.workflow_code import DEFAULT_WORKFLOW, built_in_args, built_ins

# The arguments that every workflow has, which the one before takes over.
_COMMON = ("evaluate", "evaluate_every", "key_metric", "key_metric_mode")


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write out what a job file says in short.

    - ``args.after = fedavg`` becomes a workflow of its own, before the one that has it, with those
      of its arguments that the earlier one alone has.
    - ``args.checkpoint`` of the workflow evaluate becomes ``model.initial``.
    - ``rounds`` is 1 where no workflow has any.

    What does not fit is left as it is, for the check of the job to refuse.

    Args:
        values: Values of the job file, by key.
    """
    found = dict(values)
    given = found.get(WORKFLOW)
    sections = given if isinstance(given, list) else [given]
    readable = [each for each in sections if isinstance(each, Mapping)]
    if len(readable) < len(sections) or not readable:
        return found
    stages = [stage for section in readable for stage in _with_the_one_before(section)]
    model = found.get("model", {})
    first = stages[0]
    checkpoint = first.get("args", {}).get("checkpoint") if _is(first, "evaluate") else None
    if checkpoint is not None and isinstance(model, Mapping) and model.get("initial") is None:
        found["model"] = {**model, "initial": checkpoint}
        stages[0] = {**first, "args": _without(first["args"], "checkpoint")}
    if "rounds" not in found and not any(map(_has_rounds, stages)):
        found["rounds"] = 1
    found[WORKFLOW] = stages if isinstance(given, list) or len(stages) > 1 else stages[0]
    return found


def _with_the_one_before(section: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A workflow's section, after that of the workflow which its ``after`` names."""
    args = section.get("args")
    before = args.get("after") if isinstance(args, Mapping) else None
    names = [each for each in built_ins() if built_in_args(each).has_rounds]
    if before not in names or not _is(section, "cross_site"):
        return [dict(section)]
    assert isinstance(args, Mapping)
    # What the earlier one alone knows is its own.
    own = built_in_args(str(before)).model_fields.keys() - built_in_args("cross_site").model_fields
    taken = {name: value for name, value in args.items() if name in own or name in _COMMON}
    earlier: dict[str, Any] = {"type": before, **({"args": taken} if taken else {})}
    rest = {name: value for name, value in args.items() if name not in {*own, "after"}}
    return [earlier, {**section, "args": rest}]


def _is(section: Mapping[str, Any], name: str) -> bool:
    return section.get("type") == name and isinstance(section.get("args", {}), Mapping)


def _has_rounds(section: Mapping[str, Any]) -> bool:
    name = section.get("type", DEFAULT_WORKFLOW)
    with suppress(RefusedValueError):
        return name not in list(built_ins()) or built_in_args(name).has_rounds
    return True


def _without(args: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in args.items() if key != name}
