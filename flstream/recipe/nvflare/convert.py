"""Conversion of a job folder into the values of a job file, with a note on each setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job import job_keys
from flstream.job.conditions import read_condition
from flstream.job.values import nested
from flstream.recipe.nvflare.draft import Conversion, JobDraft, KeyMetric, Place
from flstream.recipe.nvflare.folders import AppFolder, JobFolder, read_folder
from flstream.recipe.nvflare.meta import (
    count_sites,
    job_name,
    meta_notes,
    put_sites,
    site_names,
)
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare.scripts import list_code, put_scripts
from flstream.recipe.nvflare.walk import ConfigWalk
from flstream.recipe.nvflare_names import metric_mode
from flstream.text import natural_key


def convert(source: Path, name: str | None = None) -> Conversion:
    """Convert a job folder, or a configuration alone. Its code is not imported.

    Args:
        source: Path of the folder, or of a file such as `config_fed_server.conf`.
        name: Name of the job; None to make one from that which it has in NVFlare.

    Raises:
        UsageError: It cannot be read, or is no job folder of NVFlare.
    """
    try:
        return _convert(read_folder(source), name)
    except OSError as error:
        raise UsageError(f"{error.filename or source} cannot be read: {error.strerror}") from error


def _convert(folder: JobFolder, name: str | None) -> Conversion:
    draft = JobDraft(count_sites(folder), site_names(folder))
    notes = [*meta_notes(draft, folder, name), *put_sites(draft, folder)]
    for app in folder.apps:
        notes += _app_notes(draft, app)
    notes += list_code(draft, folder)
    notes += put_scripts(draft)
    for other in folder.others:
        notes.append(Place(other, "").note("no counterpart", "it is neither read nor copied"))
    draft.put("train.alias", "nvflare")
    sections = [stage.section for stage in draft.stages]
    _put_metric(draft, sections)
    name = name or job_name(folder.name)
    return Conversion(
        name,
        folder.root.name,
        _values(draft, name, sections),
        dict(sorted(draft.files.items())),
        draft.arrays,
        tuple(_in_order(folder, notes)),
    )


def _app_notes(draft: JobDraft, app: AppFolder) -> Iterator[Note]:
    """Convert the configurations of an app; yield the notes."""
    for config, is_used, where in (
        (app.server, app.is_for_the_server, "the server"),
        (app.client, app.is_for_sites, "a site"),
    ):
        if config is not None and is_used:
            yield from ConfigWalk(draft, app, config).notes()
        elif config is not None:
            yield Place(config.name, "").note("not needed", f"its app is not deployed to {where}")


def _put_metric(draft: JobDraft, sections: Sequence[dict[str, Any]]) -> None:
    """Give each workflow the metric that decides which model is the best."""
    condition = draft.values.get("stop_when")
    metric = draft.metric
    if metric is None and condition is not None:
        metric = KeyMetric(read_condition(condition).metric, False)
    if metric is None:
        return
    args = {"key_metric": metric.name}
    if metric.negated or metric_mode(metric.name, condition) == "min":
        args["key_metric_mode"] = "min"
    for section in sections:
        section["args"] = {**section.get("args", {}), **args}
    if not sections:
        draft.values |= {f"workflow.args.{key}": value for key, value in args.items()}


def _values(draft: JobDraft, name: str, workflows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of the job file, in the order of its keys."""
    known = list(job_keys())
    tops = list(dict.fromkeys(key.partition(".")[0] for key in known))

    def place(key: str) -> tuple[int, int]:
        return tops.index(key.partition(".")[0]), known.index(key) if key in known else len(known)

    flat = {"name": name, **draft.values}
    if workflows:
        flat["workflow"] = workflows[0] if len(workflows) == 1 else list(workflows)
    return nested({key: flat[key] for key in sorted(flat, key=place)})


def _in_order(folder: JobFolder, notes: Sequence[Note]) -> list[Note]:
    """Return notes file by file, each file's in the order of its keys."""
    files = list(dict.fromkeys(note.file for note in notes))
    read = [folder.meta, *(config for app in folder.apps for config in (app.server, app.client))]
    keys = {config.name: list(config.values) for config in read if config is not None}

    def place(note: Note) -> tuple[int, int, list[tuple[int, str]]]:
        first = note.path.partition("[")[0].partition(".")[0]
        top = keys.get(note.file, [])
        return (
            files.index(note.file),
            top.index(first) if first in top else -1,
            natural_key(note.path),
        )

    return sorted(notes, key=place)
