"""Section of the job file that says which sites there are, and how many a round needs."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from flstream.job.fields import Allowed, Count, CountOrFraction, Seconds, Section, Whole
from flstream.job.site_names import GpuGroups, SiteArgs, SiteNames
from flstream.telemetry.events import default_site_names

# Most clients that get a process each by default; more processes would cost too much memory.
_MOST_PROCESSES = 16
_MOST_CLIENTS = 1_000_000
_INT = ("integer",)


class ClientsSection(Section):
    """The clients of the job, and how many of them a round needs."""

    names: SiteNames | None = None
    """The clients' (sites') names; null is site-1, site-2 and so on.

    A site's name is that of its folder, too. Its index is its place in the list, from 0.
    """

    count: Annotated[
        Whole,
        Field(ge=1, le=_MOST_CLIENTS),
        Allowed(f"a whole number from 1 to {_MOST_CLIENTS}, unless clients.names is given", _INT),
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
    """How long the rest is waited for once min_updates have come (duration); null is to the end."""

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
    def worker_names(self) -> list[str]:
        """Names of the workers; the names of the sites if each site has its own worker."""
        if self.workers == self.count:
            return self.site_names
        return [f"worker-{number}" for number in range(1, self.workers + 1)]

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
