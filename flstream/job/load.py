"""Loading of a job file with overrides into a `Job`, which reports all mistakes at once."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flstream.job.expansion import expanded
from flstream.job.hocon import Hocon, read_hocon, read_value, unresolved_in
from flstream.job.job import Job
from flstream.job.key import WORKFLOW, Key, split_index, workflow_name
from flstream.job.keys import (
    StageShape,
    job_keys,
    keys_with,
    nearest_keys,
    question_about,
    section_names,
    workflow_sections,
)
from flstream.job.mistakes import problems_of
from flstream.job.problems import MISSING, UNKNOWN, JobError, Problem, given
from flstream.job.workflow_code import DEFAULT_WORKFLOW, find_workflow

_OVERRIDE = re.compile(
    r"\s*([A-Za-z0-9_-]+(?:\[\d{1,4}\])?(?:\.[A-Za-z0-9_-]+)*)\s*=(.*)", re.DOTALL
)
_NUMBER = re.compile(r"[+-]?(?:\d{1,40}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?")


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file, apply overrides, and resolve it: defaults filled in, paths absolute.

    Args:
        path: Path of the job file (HOCON).
        overrides: Texts such as `clients.count=4`, with a HOCON value. Each replaces the file's
            value of that key; of several, the last one applies. All are checked like the file.

    Returns:
        The resolved job.

    Raises:
        JobError: The job file has mistakes; the message names all of them.
    """
    path = Path(os.path.abspath(path))
    if path.is_dir():
        raise JobError(path, [Problem("", "is a folder; give the path of the job file in it")])
    if not path.exists():
        raise JobError(path, [Problem("", "there is no such job file; check the path")])

    if path.is_symlink():
        path = path.resolve()  # what a job file names lies beside the file, not beside a link
    hocon = read_hocon(path)
    problems = [*hocon.problems, *_apply(overrides, hocon.values)]
    readable = not any(problem.key == "" for problem in hocon.problems)
    try:
        if not readable:
            raise JobError(path, dict.fromkeys(problems))
        return _resolved(replace(hocon, problems=tuple(problems)), path.parent, path)
    except JobError:
        if hocon.yaml:
            what = f"`{hocon.yaml}` is YAML; a job file is HOCON: clients {{ count = 2 }}"
            raise JobError(path, [Problem("", what)]) from None
        raise


def make_job(values: Mapping[str, Any], folder: Path, source: str) -> Job:
    """Resolve a job of plain values, by the rules of a job file.

    Args:
        values: Values by key, as of a job file; sections are dicts.
        folder: Absolute path of the folder in which relative paths start.
        source: What the values are of, for the message.

    Returns:
        The resolved job.

    Raises:
        JobError: There are mistakes; the message names all of them.
    """
    return _resolved(Hocon(dict(values)), folder, source)


def _resolved(hocon: Hocon, folder: Path, source: Path | str) -> Job:
    unresolved = unresolved_in("", hocon.values)
    values = expanded(hocon.values)
    problems = [*hocon.problems, *unresolved]
    try:
        job = Job.model_validate(_with_sections(values), context={"folder": folder})
    except ValidationError as error:
        problems += _mistakes(error, values, folder, unresolved, absent=hocon.complete)
    else:
        if not problems:
            return job
    raise JobError(source, dict.fromkeys(problems))


def _apply(overrides: Iterable[str], values: dict[str, Any]) -> list[Problem]:
    """Put each override into the values; return the problems of malformed ones."""
    problems: list[Problem] = []
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is None:
            allowed = "key=value, such as clients.count=4"
            problems.append(Problem("override", given(override), allowed))
            continue
        key, text = match[1], match[2].strip()
        value, wrong = _override_value(text)
        if wrong:
            problems += [Problem(key, given(text), "a HOCON value", str(each)) for each in wrong]
            continue
        problems += _put(key, value, values)
    return problems


def _put(key: str, value: Any, values: dict[str, Any]) -> list[Problem]:
    """Put a value at the place of a key; return the problem if there is no such place."""
    first, *parts = key.split(".")
    name, index = split_index(first)
    inside: Any = values
    path: list[Any] = [name, *([] if index is None else [index]), *parts]
    there = values.get(name)
    if isinstance(there, list) and (parts or index is not None):
        if index is None or index >= len(there):
            allowed = f"one of {name}[0] to {name}[{len(there) - 1}], since {name} is a list"
            return [Problem(key, f"{first} is given", allowed)]
        inside, path = there, path[1:]
    elif index == 0:
        path.pop(1)  # the only workflow need not be in a list
    elif index is not None:
        return [Problem(key, f"{first} is given", f"{name}, since it is not a list")]
    for part in path[:-1]:
        if isinstance(inside, dict):
            inside.setdefault(part, {})
        if not isinstance(inside[part], dict):
            inside[part] = {}
        inside = inside[part]
    inside[path[-1]] = value
    return []


def _override_value(text: str) -> tuple[Any, tuple[Problem, ...]]:
    """Read the value of an override as HOCON, except that an unquoted text may be any text.

    On a command line nothing follows the value, so `a,b=c` and `x#y` are complete texts.
    """
    if text.startswith(("[", "{", '"')) or "${" in text:
        hocon = read_value(text)
        extra = hocon.values.keys() - {"value"}
        if extra:
            return None, (Problem("", "it is more than one value"),)
        return hocon.values.get("value"), hocon.problems
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()], ()
    if _NUMBER.fullmatch(text):
        return (int(text) if text.lstrip("+-").isdigit() else float(text)), ()
    return text, ()


def _with_sections(values: dict[str, Any]) -> dict[str, Any]:
    """Add omitted sections, so that their required keys are reported one by one."""
    whole = dict(values)
    for name in section_names(job_keys().values()):
        if "." not in name:
            whole.setdefault(name, {})
    return whole


def _mistakes(
    error: ValidationError,
    values: Mapping[str, Any],
    folder: Path,
    unresolved: Sequence[Problem],
    *,
    absent: bool,
) -> list[Problem]:
    """Return the mistakes as problems, with the nearest key of this job for an unknown one."""
    refused = {each.key for each in problems_of(error, job_keys(), values)}
    keys = keys_with([*_shapes(values, folder, refused)])
    found = [
        replace(each, hint=each.hint or question_about(each.key, keys))
        if each.given == UNKNOWN
        else each
        for each in problems_of(error, keys, values)
    ]
    return _primary(found, unresolved, keys, absent=absent)


def _shapes(values: Mapping[str, Any], folder: Path, refused: Set[str]) -> Iterator[StageShape]:
    """Yield the arguments of each workflow; for a refused workflow, those of the default one."""
    sections = workflow_sections(values)
    for index, section in enumerate(sections):
        name = workflow_name(index, len(sections))
        if not isinstance(section, dict) or refused & {name, f"{name}.type", WORKFLOW}:
            section = {}
        kind = job_keys()[f"{WORKFLOW}.type"].parse(section.get("type", DEFAULT_WORKFLOW), folder)
        yield StageShape(find_workflow(kind).args)


def _primary(
    found: Sequence[Problem],
    unresolved: Sequence[Problem],
    keys: Mapping[str, Key],
    *,
    absent: bool,
) -> list[Problem]:
    """Return the problems without those that only follow from others.

    A key may be missing because it is misspelt, or because an include is missing (`absent` is
    false); a value may be wrong because its `${X}` is unresolved.
    """
    unknown = [each.key for each in found if each.given == UNKNOWN]
    meant = {name for key in unknown for name in nearest_keys(key, keys)}
    unread = {each.key for each in unresolved}

    def is_relevant(problem: Problem) -> bool:
        if problem.given == MISSING:
            return absent and not _within(problem.key, meant)
        return not _within(problem.key, unread)

    return [problem for problem in found if is_relevant(problem)]


def _within(key: str, names: set[str]) -> bool:
    """Whether a key is one of these or lies in one of these sections."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
