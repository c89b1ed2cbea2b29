"""A job file and its overrides to a `Job`, with every mistake found on the way."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flstream.job.hocon import read_hocon, read_value, unresolved_in
from flstream.job.keys import job_keys, nearest_keys, question_about, section_names
from flstream.job.problems import MISSING, UNKNOWN, JobError, Problem, given
from flstream.job.sections import Job

_OVERRIDE = re.compile(r"\s*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*=(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d{1,40}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?")


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file, apply overrides, and resolve it: defaults filled in, paths absolute.

    Args:
        path: the job file (HOCON).
        overrides: texts such as `clients.count=4`, with a HOCON value; each replaces what the
            file says of that key, later ones win, and all go through the same checks.

    Raises:
        JobError: the job cannot be run as written; it names every mistake.
    """
    path = Path(os.path.abspath(path))
    if path.is_dir():
        raise JobError(path, [Problem("", "is a folder; give the path of the job file in it")])
    if not path.exists():
        raise JobError(path, [Problem("", "there is no such job file; check the path")])

    hocon = read_hocon(path)
    values = hocon.values
    problems = [*hocon.problems, *_apply(overrides, values)]
    readable = not any(problem.key == "" for problem in hocon.problems)
    if readable:
        unresolved = unresolved_in("", values)
        try:
            job = Job.model_validate(_with_sections(values), context={"folder": path.parent})
        except ValidationError as error:
            found = [each for detail in error.errors() for each in _problems(detail)]
            problems += unresolved
            problems += _worth_telling(found, unresolved, absent=hocon.complete)
        else:
            problems += unresolved
            if not problems:
                return job
    raise JobError(path, dict.fromkeys(problems))


def _apply(overrides: Iterable[str], values: dict[str, Any]) -> list[Problem]:
    """Put each override into the values; return those that are malformed."""
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
        *sections, name = key.split(".")
        section = values
        for part in sections:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        section[name] = value
    return problems


def _override_value(text: str) -> tuple[Any, tuple[Problem, ...]]:
    """Read the value of an override as HOCON, except that a bare text may hold anything.

    On a command line nothing follows the value, so `a,b=c` and `x#y` are whole texts.
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
    """Add the sections that were left out, so that what they lack is named key by key."""
    whole = dict(values)
    for name in section_names():
        if "." not in name:
            whole.setdefault(name, {})
    return whole


def _problems(error: ErrorDetails) -> list[Problem]:
    """Turn one of pydantic's errors into problems that a reader of the job file understands."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "refused":
        return [
            Problem(_join(key, each.key), each.given, each.allowed, each.hint)
            for each in error["ctx"]["problems"]
        ]
    if error["type"] == "missing":
        return [Problem(key, MISSING, job_keys()[key].rule.allowed)]
    if error["type"] == "extra_forbidden":
        return [Problem(key, UNKNOWN, "", question_about(key))]
    inside = [name.removeprefix(f"{key}.") for name in job_keys() if name.startswith(f"{key}.")]
    return [Problem(key, given(error["input"]), f"a section {{ {', '.join(inside)} }}")]


def _join(key: str, inner: str) -> str:
    """Place a rule's problem under its field; a full path (`model.factory`) stands alone."""
    if inner in job_keys():
        return inner
    return f"{key}.{inner}" if inner else key


def _worth_telling(
    found: Sequence[Problem], unresolved: Sequence[Problem], *, absent: bool
) -> list[Problem]:
    """Leave out what only follows from another mistake.

    That is a key missing because it is misspelt or because an include is (`absent` is false),
    a value wrong because its `${X}` is unresolved, and arguments of an unknown workflow.
    """
    meant = {name for each in found if each.given == UNKNOWN for name in nearest_keys(each.key)}
    unread = {each.key for each in unresolved}
    if any(each.key == "workflow.type" for each in found):
        unread.add("workflow.args")

    def told(problem: Problem) -> bool:
        if problem.given == MISSING:
            return absent and not _within(problem.key, meant)
        return not _within(problem.key, unread)

    return [problem for problem in found if told(problem)]


def _within(key: str, names: set[str]) -> bool:
    """Whether a key is one of these or lies in one of these sections."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
