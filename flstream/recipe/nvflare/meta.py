"""What becomes of a job folder's description: names, numbers and sites, from its meta file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flstream.job import ClientsSection, parse_value
from flstream.job.problems import RefusedValueError
from flstream.recipe.nvflare.draft import Argument, JobDraft, Place
from flstream.recipe.nvflare.folders import JobFolder
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare.variables import fill_in

_MOST_SITES = 1_000_000
_NUMBERS = ("min_clients", "num_clients", "min_responses_required")
_IDLE_KEYS = {
    "resource_spec": "clients.parallel, clients.threads and clients.gpus are for all sites alike",
    "mandatory_clients": "clients.min_updates is a number, whoever they are",
}


def count_sites(folder: JobFolder) -> int | None:
    """Return the number of a job's sites: of those that are named, or as many as it needs."""
    if folder.sites is not None:
        return len(folder.sites)
    found: list[Any] = [] if folder.meta is None else [folder.meta.values.get("min_clients")]
    for app in folder.apps:
        for config in (app.server, app.client):
            if config is not None:
                found += _numbers_in(fill_in(config)[0].values)
    return max((each for each in found if _is_count(each)), default=None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_SITES


def _numbers_in(values: Mapping[str, Any]) -> Iterator[Any]:
    workflows, executors = values.get("workflows"), values.get("executors")
    made = workflows if isinstance(workflows, list) else []
    parts = executors if isinstance(executors, list) else []
    for each in [*made, *(part.get("executor") for part in parts if isinstance(part, dict))]:
        args = each.get("args") if isinstance(each, dict) else None
        if isinstance(args, dict):
            yield from (args[name] for name in _NUMBERS if name in args)


def put_sites(draft: JobDraft, folder: JobFolder) -> Iterator[Note]:
    """Give the job its sites; yield notes on names that had to be changed."""
    names = draft.site_names
    if names is None:
        if draft.count is not None:
            draft.put("clients.count", draft.count)
        return
    if set(names.values()) == set(ClientsSection(count=len(names)).site_names):
        draft.put("clients.count", len(names))
    else:
        draft.put("clients.names", list(names.values()))
    for given, name in names.items():
        if given != name and folder.meta is not None:
            place = Place(folder.meta.name, "deploy_map")
            yield place.note("becomes", f"clients.names, where the site {given} is {name}")


def site_names(folder: JobFolder) -> dict[str, str] | None:
    """Return the names that sites have here, by those that they have in NVFlare.

    None where the job names none.
    """
    if folder.sites is None:
        return None
    names: dict[str, str] = {}
    for site in folder.sites:
        name = site
        try:
            parse_value("clients.names", [name], Path.cwd())
        except RefusedValueError:
            name = f"site-{re.sub(r'[^A-Za-z0-9._-]+', '-', site)}"[:64]
        while name in names.values():
            name = f"{name[:60]}-{len(names) + 1}"
        names[site] = name
    return names


def job_name(name: str) -> str:
    """Return a job's name with `-` for what a name here cannot have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100].rstrip("-") or "job"


def meta_notes(draft: JobDraft, folder: JobFolder, name: str | None) -> Iterator[Note]:
    """Convert the meta file, key by key; yield the notes.

    Args:
        draft: The job.
        folder: The job folder.
        name: Name that the job is given; None for that of the meta file.
    """
    if folder.meta is None:
        return
    for key, value in folder.meta.values.items():
        argument = Argument(None, Place(folder.meta.name, key), key, value)
        if key == "name" and name not in (None, value):
            yield argument.not_needed(f"the job is named after its folder, {name}")
        else:
            yield _meta_note(draft, folder, argument)


def _meta_note(draft: JobDraft, folder: JobFolder, argument: Argument) -> Note:
    key, value = argument.name, argument.value
    if key == "name":
        name = job_name(folder.name)
        return argument.becomes("name" if name == value else f"name = {name}, as names are here")
    if key == "deploy_map":
        if folder.sites is None:
            return argument.not_needed("it names no sites")
        return argument.becomes("clients")
    if key == "min_clients":
        if draft.count == value and draft.site_names is None:
            return argument.becomes("clients.count")
        if _is_count(value) and draft.count is not None and value <= draft.count:
            return argument.not_needed("all sites are there from the beginning")
        return argument.lost("it is not the number of the job's sites")
    if key in _IDLE_KEYS:
        return argument.lost(_IDLE_KEYS[key]) if value else argument.not_needed("it is empty")
    return argument.lost("it is not known here")
