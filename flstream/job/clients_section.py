"""The clients of a job: their names and values of single ones, and how a round samples them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticKnownError

from flstream.job.fields import (
    EACH_ONCE,
    NOT_EMPTY,
    Allowed,
    Count,
    CountOrFraction,
    FreeArgs,
    Real,
    Seconds,
    Section,
    Whole,
    folder_of,
)
from flstream.job.files import code_name, csv_rows
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, hint_of_name
from flstream.job.typed import Sections, TypedSection
from flstream.telemetry.events import default_site_names

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


class PowerOfChoiceSection(Section):
    """Draw candidates by data size, and ask those of the highest loss."""

    candidates: Count | None = None
    """How many candidates are drawn, of which the round's clients are chosen; null is twice as many
    as those."""


class OortSection(Section):
    """Ask sites by how much and how fast they are likely to contribute, and explore new ones."""

    exploration: Annotated[Real, Field(ge=0, le=1)] = 0.9
    """The fraction of the first round's clients that are drawn from sites without a loss yet."""

    exploration_decay: Annotated[Real, Field(gt=0, le=1)] = 0.98
    """What that fraction is multiplied by after each round."""

    exploration_min: Annotated[Real, Field(ge=0, le=1)] = 0.2
    """The least that it becomes."""

    preferred_duration: Seconds | None = None
    """How long a site's task is to take at most (duration); slower sites count for less.

    null is the duration of the last tasks that 30% of the sites were faster than. Tasks have
    durations with time.clock = virtual alone.
    """

    alpha: Annotated[Whole, Field(ge=0, le=20)] = 2
    """The exponent of preferred_duration / duration, by which a slower site counts for less."""

    cutoff: Annotated[Real, Field(gt=0, le=1)] = 0.95
    """The fraction of the last chosen site's utility that a site needs to be drawn at all."""

    @model_validator(mode="after")
    def _decays(self) -> Self:
        if self.exploration_min > self.exploration:
            allowed = f"at most exploration, which is {self.exploration:g}"
            raise RefusedValueError(Problem("exploration_min", "", allowed))
        return self


SAMPLERS: Sections = {
    "uniform": Section,
    "by_data_size": Section,
    "power_of_choice": PowerOfChoiceSection,
    "oort": OortSection,
    "round_robin": Section,
}
"""Sections of the arguments of the samplers that come with flstream, by type."""


class SamplerSection(TypedSection):
    """Sampler of the sites of a round, where `clients.per_round` is fewer than all."""

    sections = SAMPLERS

    type: Annotated[str, *code_name("Class", lambda: SAMPLERS)] = "uniform"
    """The sampler: uniform, or one that chooses by what sites have reported, or one's own.

    by_data_size draws by numbers of examples; power_of_choice and oort prefer sites with a high
    loss, and oort fast ones; round_robin asks all in turn. docs/workflows.md says more of each. A
    class of your own is named `file.py:Class` or `module:Class`.
    """

    @property
    def is_uniform(self) -> bool:
        """Whether every site is as likely to be drawn, whatever it has reported."""
        return self.type == "uniform"


# Most clients that get a process each by default; more processes would cost too much memory.
_MOST_PROCESSES = 16
_MOST_CLIENTS = 1_000_000


class ClientsSection(Section):
    """The clients of the job, and how many of them a round needs."""

    names: SiteNames | None = None
    """The clients' (sites') names; null is site-1, site-2 and so on.

    A site's name is that of its folder, too. Its index is its place in the list, from 0.
    """

    count: Annotated[
        Whole,
        Field(ge=1, le=_MOST_CLIENTS),
        Allowed(f"a whole number from 1 to {_MOST_CLIENTS}, unless clients.names is given"),
    ]
    """How many clients (sites) the job has; left out, as many as clients.names lists."""

    args: SiteArgs = Field(default_factory=dict)
    """Arguments of one site alone, by site: `{ ward { data = "a.csv" } }`, or a CSV file of them.

    A script gets them after those of train.args, or instead of those of the same name; a learner
    finds them in `self.site.args`. The first column of a file has the site's name; the other cells
    are texts, but for true, false and null, and an empty one is as if it were not there.
    """

    parallel: Annotated[Whole, Field(ge=1, le=256)] | None = None
    """How many worker processes run them; null is one each up to 16, then one a core.

    With engine.type = ray, or with engine.gpus, null is as many as there is room for.

    With fewer workers than clients a worker runs several, one after another.
    """

    per_round: CountOrFraction | None = None
    """How many clients a round samples: a number, or a fraction of them; null is all.

    `1` is one client, `1.0` is all of them.
    """

    sampler: SamplerSection = SamplerSection()

    threads: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """Torch threads of each client process.

    The number can change the last bits of what training gives, so it does not follow the machine.
    """

    gpus: GpuGroups | None = None
    """The GPUs of each client process in turn, as CUDA_VISIBLE_DEVICES; null is all for each.

    With `["0", "1"]`, the third process has GPU 0 again; `["0,1", "2,3"]` gives two to each.
    """

    min_updates: Count | None = None
    """How many clients of a round have to send a sound update; null is all of them.

    A round goes on without those that fail as long as so many are left.
    """

    round_timeout: Seconds = 3600.0
    """How long a client may take for its task (duration), after which it has failed."""

    wait_after_min: Seconds | None = None
    """How long a round waits for further updates once it has min_updates (duration).

    null is until every client has answered or failed.
    """

    suspend_after: Annotated[Whole, Field(ge=0)] = 2
    """After how many failures in a row a client is asked no more; 0 is never."""

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_are_named(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("count") is None:
            values = {name: value for name, value in values.items() if name != "count"}
            if isinstance(names := values.get("names"), list) and names:
                values["count"] = len(names)
        return values

    @property
    def workers(self) -> int:
        """Number of worker processes; as many as clients if each client has its own."""
        if self.parallel is not None:
            return min(self.parallel, self.count)
        return self.count if self.count <= _MOST_PROCESSES else os.cpu_count() or 1

    @property
    def share_workers(self) -> bool:
        """Whether clients share workers; else each has its own."""
        return self.workers < self.count

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers; the names of the sites if each site has its own worker."""
        if self.share_workers:
            return [f"worker-{number}" for number in range(1, self.workers + 1)]
        return self.site_names

    @property
    def site_names(self) -> list[str]:
        """Names of the sites, in their fixed order; `site-1`, `site-2` and so on by default."""
        return list(self.names or default_site_names(self.count))

    @property
    def cohort_size(self) -> int:
        """Number of clients that a round samples, from 1 to `count`."""
        if isinstance(self.per_round, float):
            return max(1, round(self.per_round * self.count))
        return self.count if self.per_round is None else self.per_round
