"""Loading of a job file with overrides into a `Job`, which reports all mistakes at once."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flstream.job.expansion import expanded
from flstream.job.hocon import Hocon, ParsedOverride, parse_value, read_hocon
from flstream.job.job import Job
from flstream.job.key import WORKFLOW, Key, workflow_name
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
from flstream.job.substitutions import unresolved_in
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
            value of that key; of several, the last one applies. `${X}` anywhere has the value that
            X has after all of them. All are checked like the file.

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
    parsed, mistaken = _parsed(overrides)
    hocon = read_hocon(path, parsed)
    problems = [*hocon.problems, *mistaken]
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


def _parsed(overrides: Iterable[str]) -> tuple[list[ParsedOverride], list[Problem]]:
    """Parse overrides; return the problems of malformed ones."""
    parsed: list[ParsedOverride] = []
    problems: list[Problem] = []
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is None:
            allowed = "key=value, such as clients.count=4"
            problems.append(Problem("override", given(override), allowed))
            continue
        key, text = match[1], match[2].strip()
        value, wrong = _override_value(text)
        problems += [Problem(key, given(text), "a HOCON value", str(flaw)) for flaw in wrong]
        if not wrong:
            parsed.append(ParsedOverride(key, value))
    return parsed, problems


def _override_value(text: str) -> tuple[Any, tuple[Problem, ...]]:
    """Parse the value of an override as HOCON, except that an unquoted text may be any text.

    On a command line nothing follows the value, so `a,b=c` and `x#y` are complete texts.
    """
    if text.startswith(("[", "{", '"')) or "${" in text or text.lower() == "null":
        return parse_value(text)
    words = {"true": True, "false": False}
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
