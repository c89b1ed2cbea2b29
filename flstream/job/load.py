"""Loading of a job file with overrides, with all mistakes in one report."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError
from pyhocon.config_tree import NoneValue

from flstream.job.fields import read_number
from flstream.job.hocon import Hocon, Override, parse_value, plain, read_hocon
from flstream.job.job import Job
from flstream.job.keys import explain, keys_in, nearest_keys, value_at, which_key
from flstream.job.problems import (
    MISSING,
    UNKNOWN,
    JobError,
    Problem,
    did_you_mean,
    given_clause,
)
from flstream.text import shortened

_NAME = r"[A-Za-z0-9_-]+(?:\[\d{1,4}\])?"
_OVERRIDE = re.compile(rf"\s*({_NAME}(?:\.{_NAME})*)\s*=(.*)", re.DOTALL)
_MOST_SHOWN = 60  # characters of an override that a message names
_WORDS = {"true": True, "false": False, "null": NoneValue()}


def load_job(
    path: str | Path,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> Job:
    """Read a job file, apply overrides, and fill in defaults and absolute paths.

    Args:
        path: Path of the job file (HOCON), or of the folder with its ``job.conf``.
        overrides: Texts such as `clients.count=4`, with a HOCON value. Each replaces the file's
            value of that key; of several, the last one applies. `${X}` anywhere has the value that
            X has after all of them. All are checked like the file.
        settings: Values by dotted key, which apply last; one that is None is left out.
        text: Text of the job in place of the file's; None for that.

    Returns:
        The resolved job.

    Raises:
        JobError: The job file has mistakes; the message names all of them.
    """
    path = job_file(path)
    if not os.path.exists(path):
        siblings = []
        with suppress(OSError):  # no folder, or one that may not be listed
            siblings = os.listdir(path.parent)
        hint = did_you_mean(path.name, siblings) or "check the path"
        raise JobError(path, [Problem("", "there is no such job file", hint=hint)])

    if path.is_symlink():
        path = path.resolve()  # what a job file names lies beside the file, not beside a link
    parsed, mistaken = _parsed(overrides)
    own = {key: value for key, value in (settings or {}).items() if value is not None}
    parsed += own.items()
    hocon = read_hocon(path, parsed, text)
    problems = [*hocon.problems, *mistaken]
    try:
        if any(problem.key == "" for problem in hocon.problems):
            raise JobError(path, dict.fromkeys(problems))
        return _resolved(replace(hocon, problems=problems), _folder_of(path), path)
    except JobError as error:
        if hocon.yaml:
            what = f"`{hocon.yaml}` is YAML; a job file is HOCON: clients {{ count = 2 }}"
            raise JobError(path, [Problem("", what)]) from None
        mistaken_keys = [problem.key for problem in error.problems]
        texts = {text.partition("=")[0].strip(): text.strip() for text in overrides}
        texts |= {key: f"{key}={value}" for key, value in own.items()}
        mistaken_texts = [
            shortened(text, _MOST_SHOWN)
            for key, text in texts.items()
            if any(_is_within(mistake, {key}) for mistake in mistaken_keys)
        ]
        if mistaken_texts:
            raise JobError(f"{path} with {', '.join(mistaken_texts)}", error.problems) from None
        raise


class JobFile(msgspec.Struct, frozen=True):
    """A file's name and content.

    Attributes:
        name: Path relative to the folder of the file that the job file's key names.
        bytes: Length in bytes.
        digest: xxh3-128 digest of the content, 32 hexadecimal digits.
    """

    name: str
    bytes: int
    digest: str


FilesByKey = Mapping[str, Sequence[JobFile]]
"""Files by key of the job file: the file that the key names, then those that it imports."""


class JobFiles(msgspec.Struct, frozen=True):
    """Content of a run's ``job.files.json``.

    Attributes:
        folder: Absolute path of the job's folder, in which its relative paths start.
        files: The job's files by key.
    """

    folder: str
    files: FilesByKey


def _folder_of(path: Path) -> Path:
    """Return the folder of a job: its file's, or for a run's file that of the job that it ran."""
    with suppress(OSError, msgspec.DecodeError):
        files = msgspec.json.decode(path.with_name("job.files.json").read_bytes(), type=JobFiles)
        if os.path.isdir(files.folder):
            return Path(files.folder)
    return path.parent


def job_file(named: str | Path) -> Path:
    """Return the absolute path of a job file, from its path or the folder with ``job.conf``."""
    path = Path(os.path.abspath(named))
    return path / "job.conf" if os.path.isdir(path) else path


def settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides such as `clients.count=4` by their keys.

    Raises:
        JobError: One is malformed; the message names all of those.
    """
    parsed, problems = _parsed(overrides)
    if problems:
        raise JobError("the command line", problems)
    return {key: plain(value, key, {}) for key, value in parsed}


def make_job(values: Mapping[str, Any], folder: Path, source: str) -> Job:
    """Resolve a job of plain values, by the rules of a job file.

    Args:
        values: Values by key, as of a job file; sections are dicts.
        folder: Absolute path of the folder in which relative paths start.
        source: Name of the values' source, for the message.

    Returns:
        The resolved job.

    Raises:
        JobError: There are mistakes; the message names all of them.
    """
    return _resolved(Hocon(dict(values)), folder, source)


def _resolved(hocon: Hocon, folder: Path, source: Path | str) -> Job:
    values, problems = hocon.values, [*hocon.problems]
    try:
        job = Job.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        problems += _primary(explain(error, Job, values), hocon)
    else:
        if not problems:
            return job
    raise JobError(source, dict.fromkeys(problems))


def _parsed(overrides: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """Parse overrides; return the problems of malformed ones."""
    parsed: list[Override] = []
    problems: list[Problem] = []
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is None:
            allowed = "key=value, such as clients.count=4"
            problems.append(Problem("override", given_clause(override), allowed))
            continue
        key, text = match[1], match[2].strip()
        if not text.startswith(("[", "{", '"')) and "${" not in text:
            # On a command line nothing follows the value, so `a,b=c` and `x#y` are complete texts.
            parsed.append((key, _WORDS.get(text.lower(), read_number(text))))
            continue
        value, flaws = parse_value(text)
        problems += [Problem(key, given_clause(text), "a HOCON value", str(flaw)) for flaw in flaws]
        if not flaws:
            parsed.append((key, value))
    return parsed, problems


def _primary(problems: Sequence[Problem], hocon: Hocon) -> list[Problem]:
    """Return the problems that do not follow from others, with the nearest keys.

    A key may be missing because it is misspelt, or because an include is missing; a value may be
    wrong because its `${X}` is unresolved.
    """
    keys = keys_in(hocon.values)
    unknown = [problem.key for problem in problems if problem.state == UNKNOWN]
    # The arguments of training code are keys where the file gives them: `lr` is `train.args.lr`.
    args = value_at(hocon.values, "train.args")
    own = [f"train.args.{name}" for name in args] if isinstance(args, dict) else []
    meant = {name for key in unknown for name in nearest_keys(key, keys)}

    def is_primary(problem: Problem) -> bool:
        if problem.state == MISSING:
            return hocon.complete and not _is_within(problem.key, meant)
        return not _is_within(problem.key, hocon.unresolved)

    def suggesting(problem: Problem) -> Problem:
        question = which_key(problem.key, [*keys, *own]) if problem.state == UNKNOWN else ""
        return replace(problem, hint=question or problem.hint)

    return [suggesting(problem) for problem in problems if is_primary(problem)]


def _is_within(key: str, names: Iterable[str]) -> bool:
    """Return whether a key is one of these keys or in one of these sections."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
