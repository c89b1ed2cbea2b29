"""Values of keys for names of sites, and for single sites or processes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticKnownError

from flstream.job.fields import (
    EACH_ONCE,
    NOT_EMPTY,
    Allowed,
    FreeArgs,
    Real,
    folder_of,
)
from flstream.job.files import csv_rows
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, hint_of_name

# Cells that are constants, as in a section; all others are texts.
_CONSTANTS = {"true": True, "false": False, "null": None}
# Beyond these, products with numbers of examples would lose digits, or be infinite.
_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# As CUDA_VISIBLE_DEVICES takes them: by number, or by UUID.
_GPUS = re.compile(r"[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*")
# Names of a run's own processes and of their logs.
_PROCESS = re.compile(r"server|launcher|fork-server|model-builder|evaluator|worker-\d+|\.+")


_SITE_NAMES = "a list of names of letters, digits, '.', '_' and '-', each of them once"


def site_of(quoted: str) -> str:
    """Return the name of a site that a section has as a key."""
    site = quoted.strip('"')  # HOCON keeps the quotes of a key with a dot
    if not _NAME.fullmatch(site):
        raise RefusedValueError(Problem("", f"key {site!r}", _SITE_NAMES, hint_of_name(site)))
    return site


def site_problems(key: str, names: Iterable[str], sites: Sequence[str]) -> Iterator[Problem]:
    """Yield the problem of names that no site of the job has, all in one."""
    if unknown := sorted(set(names).difference(sites)):
        allowed = f"sites of the job, which are {sites[0]} to {sites[-1]}"
        hint = did_you_mean(unknown[0], sites)
        yield Problem(key, f"given {', '.join(unknown)}", allowed, hint)


def _usable(names: list[str]) -> list[str]:
    """Return names that can be names of folders, and are no process's own."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(hint_of_name(name) or f"{name!r} is no such name")
        if _PROCESS.fullmatch(name):
            raise ValueError(f"{name} is the name of a process of the run")
    return names


def _rows(value: Any, info: ValidationInfo) -> Any:
    """Return a CSV file's rows by site, as texts, without empty ones; others as is."""
    if not isinstance(value, str):
        return value
    path = folder_of(info) / value
    sites: dict[str, dict[str, Any]] = {}
    for where, cells in csv_rows(path):
        site, *texts = cells.values()
        if site in sites:
            raise ValueError(f"{where} {site} is in it twice")
        columns = zip([*cells][1:], texts, strict=True)
        sites[site] = {name: _CONSTANTS.get(text, text) for name, text in columns if text}
    return sites


def _gpus(value: Any) -> str:
    group = "".join(str(value).split())
    if isinstance(value, bool) or not _GPUS.fullmatch(group):
        raise PydanticKnownError("string_type")
    return group


SiteNames = Annotated[
    list[str],
    NOT_EMPTY,
    AfterValidator(_usable),
    EACH_ONCE,
    Allowed(f"{_SITE_NAMES}, such as [ward, clinic]"),
]
"""A list of names of sites."""

_Site = Annotated[str, AfterValidator(site_of)]

SiteArgs = Annotated[
    dict[_Site, FreeArgs],
    BeforeValidator(_rows),
    Allowed(
        "a section for each site, or the path of a CSV file whose first column is the site",
        ("object", "string"),
    ),
]
"""Arguments by site: a section each, or a CSV file with a row each."""

_RANGE = f"{_LEAST_FACTOR:g} to {_MOST_FACTOR:g}"

_Factor = Annotated[
    Real, Field(ge=_LEAST_FACTOR, le=_MOST_FACTOR), Allowed(f"a number from {_RANGE}")
]

SiteFactors = Annotated[
    dict[_Site, _Factor],
    Allowed(f"a section with a number from {_RANGE} for each site, such as {{ ward = 2.0 }}"),
]
"""A positive number by site."""

GpuGroups = Annotated[
    list[Annotated[str, BeforeValidator(_gpus)]],
    NOT_EMPTY,
    Allowed('a list of GPUs, or of groups of them with commas, such as ["0", "1,2"]'),
]
"""A list of the GPUs of one process each, such as `["0", "1"]` or `["0,1", "2,3"]`."""
