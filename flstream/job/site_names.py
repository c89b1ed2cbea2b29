"""Rules for the names of sites, and for what one site alone has: arguments, and a weight."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from flstream.job.free_values import FreeArgs
from flstream.job.problems import Problem, given, hint_of_name
from flstream.job.rules import Real, ValueRule, first_twice, refuse

# What a cell means as it does in a section; all others are texts.
_CONSTANTS = {"true": True, "false": False, "null": None}
# Beyond these, products with numbers of examples would lose digits, or be infinite.
_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Names of a run's own processes and of their logs.
# As CUDA_VISIBLE_DEVICES takes them: by number, or by UUID.
_GPUS = re.compile(r"[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*")
_PROCESS = re.compile(r"server|launcher|fork-server|model-builder|tracker|worker-\d+|\.+")


def site_of(quoted: str) -> str:
    """Return the name of a site that a section has as a key."""
    site = quoted.strip('"')  # HOCON keeps the quotes of a key with a dot
    if not _NAME.fullmatch(site):
        raise refuse(Problem(quoted, f"key {site!r}", SiteNames().allowed, hint_of_name(site)))
    return site


@dataclass(frozen=True)
class SiteNames(ValueRule):
    """A list of names, each of which can be a folder's and is no process's own."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a list of names of letters, digits, '.', '_' and '-', each of them once"

    def parse(self, value: Any, folder: Path) -> list[str]:
        """Return the names."""
        if not isinstance(value, list) or not value:
            raise self.refused(value, "write [ward, clinic]")
        for name in value:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise self.refused(value, hint_of_name(name) or f"{name!r} is no such name")
            if _PROCESS.fullmatch(name):
                raise self.refused(value, f"{name} is the name of a process of the run")
        if twice := first_twice(value):
            raise self.refused(value, f"{twice} is in it twice")
        return value


@dataclass(frozen=True)
class SiteArgs(ValueRule):
    """Arguments by site: a section each, or a CSV file with a row each."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a section for each site, or the path of a CSV file whose first column is the site"

    def parse(self, value: Any, folder: Path) -> dict[str, dict[str, Any]]:
        """Return the arguments by site; those of a file are texts, without the empty ones."""
        if isinstance(value, str):
            return self._read(value, folder / value)
        if not isinstance(value, dict):
            raise self.refused(value)
        found = {}
        for quoted, args in value.items():
            site = site_of(quoted)
            if not isinstance(args, dict):
                raise refuse(Problem(site, given(args), FreeArgs().allowed))
            found[site] = FreeArgs().parse(args, folder)
        return found

    def _read(self, value: str, path: Path) -> dict[str, dict[str, Any]]:
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                lines = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
                head, *rows = lines
        except (OSError, UnicodeDecodeError) as error:
            raise self.refused(value, f"{path} cannot be read: {error}") from error
        except (csv.Error, ValueError) as error:
            raise self.refused(value, f"{path} is no CSV file with a head") from error
        if twice := first_twice(head[1:]):
            raise self.refused(value, f"{path} has the column {twice} twice")
        found: dict[str, dict[str, Any]] = {}
        for number, row in enumerate(rows, 2):
            if len(row) != len(head):
                reason = f"{path}, line {number}, has {len(row)} columns instead of {len(head)}"
                raise self.refused(value, reason)
            if row[0] in found:
                raise self.refused(value, f"{path}, line {number}: {row[0]} is in it twice")
            columns = zip(head[1:], row[1:], strict=True)
            found[row[0]] = FreeArgs().parse(
                {name: _CONSTANTS.get(text, text) for name, text in columns if text}, path.parent
            )
        return found


@dataclass(frozen=True)
class SiteFactors(ValueRule):
    """A positive number by site."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"a section with a number from {_LEAST_FACTOR:g} to {_MOST_FACTOR:g} for each site"

    def parse(self, value: Any, folder: Path) -> dict[str, float]:
        """Return the numbers by site."""
        if not isinstance(value, dict):
            raise self.refused(value, "write { ward = 2.0 }")
        rule = Real(_LEAST_FACTOR, below=math.nextafter(_MOST_FACTOR, math.inf))
        found = {}
        for quoted, factor in value.items():
            site = site_of(quoted)
            try:
                found[site] = float(rule.parse(factor, folder))
            except PydanticCustomError as error:
                allowed = f"a number from {_LEAST_FACTOR:g} to {_MOST_FACTOR:g}"
                raise refuse(Problem(site, given(factor), allowed)) from error
        return found


@dataclass(frozen=True)
class GpuGroups(ValueRule):
    """A list of the GPUs of one process each, such as `["0", "1"]` or `["0,1", "2,3"]`."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a list of GPUs, or of groups of them as texts with commas"

    def parse(self, value: Any, folder: Path) -> list[str]:
        """Return the groups."""
        if not isinstance(value, list) or not value:
            raise self.refused(value, 'write ["0", "1"]')
        groups = ["".join(str(each).split()) for each in value]
        for each, group in zip(value, groups, strict=True):
            if isinstance(each, bool) or not _GPUS.fullmatch(group):
                raise self.refused(each, 'write ["0", "1"]')
        return groups
