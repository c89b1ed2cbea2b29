"""A list of sites, as a job file gives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from flstream.job.fields import EACH_ONCE, NOT_EMPTY, Allowed
from flstream.job.problems import Problem, did_you_mean, given_clause

if TYPE_CHECKING:
    from flstream.job import ClientsSection


SiteList = Annotated[
    list[str],
    NOT_EMPTY,
    EACH_ONCE,
    Allowed("a list of sites, each of them once, such as [site-1, site-2]"),
]
"""A list of sites' names; whether the job has these sites is not known here."""


def unknown_sites(
    key: str, names: Sequence[str] | None, clients: ClientsSection
) -> Iterator[Problem]:
    """Yield the names in the list ``names`` of a key that no site of the job has."""
    sites = clients.site_names
    allowed = f"a site of the job, which are {sites[0]} to {sites[-1]}"
    for name in sorted(set(names or ()).difference(sites)):
        yield Problem(key, given_clause(name), allowed, did_you_mean(name, sites))
