"""Short forms of a job file's workflows, written out before the job is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flstream.job.keys import WORKFLOW
from flstream.job.workflow_args import COMMON_ARGS
from flstream.job.workflow_code import DEFAULT_WORKFLOW, built_in_args, built_ins


def written_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write out what a job file says in short; what does not fit stays, for the checks to refuse.

    - ``args.after = fedavg`` of cross_site becomes a workflow of its own before it, with those of
      its arguments that the earlier one alone has.
    - ``args.checkpoint`` of the workflow evaluate becomes ``model.initial``.
    - ``rounds`` is 1 where no workflow has any.

    Args:
        values: Values of the job file, by key.
    """
    written = dict(values)
    value = written.get(WORKFLOW) or {}
    sections = value if isinstance(value, list) else [value]
    sections = [{"type": section} if isinstance(section, str) else section for section in sections]
    if not all(isinstance(section, Mapping) and _args(section) is not None for section in sections):
        return written
    stages = [stage for section in sections for stage in _with_the_one_before(section)]
    first, model = stages[0], written.get("model", {})
    checkpoint = _args(first).get("checkpoint") if first.get("type") == "evaluate" else None
    if checkpoint is not None and isinstance(model, Mapping) and model.get("initial") is None:
        written["model"] = {**model, "initial": checkpoint}
        args = {name: value for name, value in _args(first).items() if name != "checkpoint"}
        stages[0] = {**first, "args": args}
    if "rounds" not in written and not any(map(_has_rounds, stages)):
        written["rounds"] = 1
    if len(stages) > len(sections) or checkpoint is not None:
        written[WORKFLOW] = stages if isinstance(value, list) or len(stages) > 1 else stages[0]
    return written


def _args(section: Mapping[str, Any]) -> Any:
    args = section.get("args", {})
    return args if isinstance(args, Mapping) else None


def _with_the_one_before(section: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a workflow's section, after that of the workflow which its ``after`` names."""
    args, kind = _args(section), str(section.get("type"))
    before = args.get("after") if kind == "cross_site" else None
    if before not in list(built_ins()) or not built_in_args(before).has_rounds:
        return [dict(section)]
    own = built_in_args(before).model_fields.keys() - built_in_args(kind).model_fields.keys()
    taken = {name: value for name, value in args.items() if name in {*own, *COMMON_ARGS}}
    rest = {name: value for name, value in args.items() if name not in {*own, "after"}}
    return [{"type": before, "args": taken}, {**section, "args": rest}]


def _has_rounds(section: Mapping[str, Any]) -> bool:
    kind = section.get("type", DEFAULT_WORKFLOW)
    return kind not in list(built_ins()) or built_in_args(kind).has_rounds
