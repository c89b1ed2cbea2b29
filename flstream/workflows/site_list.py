"""A list of sites, as a job file gives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.job.problems import Problem, did_you_mean, given
from flstream.job.rules import ValueRule, first_twice

if TYPE_CHECKING:
    from flstream.job import ClientsSection


@dataclass(frozen=True)
class SiteList(ValueRule):
    """A list of sites' names."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return "a list of sites, each of them once"

    def parse(self, value: Any, folder: Path) -> list[str]:
        """Return the names. Whether the job has these sites is not known here."""
        if flaw := list_flaw(value, "[site-1, site-2]"):
            raise self.refused(value, flaw)
        return list(value)


def list_flaw(value: Any, example: str) -> str | None:
    """Why a value is no list of sites, each of them once; None if it is one.

    Args:
        value: The value.
        example: How such a list is written.
    """
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if not value or not is_list:
        return f"write {example}"
    twice = first_twice(value)
    return f"{twice} is in it twice" if twice else None


def unknown_sites(
    key: str, names: Sequence[str] | None, clients: ClientsSection
) -> Iterator[Problem]:
    """Yield the names in a list that no site of the job has.

    Args:
        key: Key of the list.
        names: The list; None names no site.
        clients: The job's section of clients.
    """
    sites = clients.site_names
    allowed = f"a site of the job, which are {sites[0]} to {sites[-1]}"
    for name in sorted(set(names or ()).difference(sites)):
        yield Problem(key, given(name), allowed, did_you_mean(name, sites))
