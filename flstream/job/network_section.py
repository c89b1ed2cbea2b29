"""Section of the job file that says what the links of the sites are like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from flstream.job.link import NetworkLink
from flstream.job.link_traces import LinkTraces, TraceFile
from flstream.job.link_values import (
    LINK_KEYS,
    LinksBySite,
    LinkSpread,
    LinkValue,
    LinkValues,
)
from flstream.job.problems import Problem, did_you_mean
from flstream.job.section import Section


class NetworkSection(Section):
    """The links of the sites, emulated: what moves models is paced as if it came over them.

    A site's link is between it and all others. All that the site sends shares `up`, and all that it
    receives shares `down`. Models come out the same, bit for bit. Without any of these keys nothing
    is emulated. The page [network.md](network.md) says what is emulated and what is not.
    """

    up: Annotated[float | LinkSpread | None, LinkValue("up")] = None
    """What a site can send (bits a second: `10 Mbit`, `10 Mbit/s`); null is without limit.

    This and each of the next four keys is a value, or a distribution of which each site draws its
    own, by the job's seed and the site's name: `{ distribution = lognormal, median = 10 Mbit,
    sigma = 0.5 }`, where sigma is the standard deviation of the logarithm, or `{ distribution =
    uniform, low = 5 Mbit, high = 20 Mbit }`.
    """

    down: Annotated[float | LinkSpread | None, LinkValue("down")] = None
    """What a site can receive (bits a second); null is without limit."""

    latency: Annotated[float | LinkSpread | None, LinkValue("latency")] = None
    """How long a byte travels, one way (duration); a round trip takes twice as long; null is 0."""

    jitter: Annotated[float | LinkSpread | None, LinkValue("jitter")] = None
    """How much longer it may travel (duration), drawn uniformly; null is 0."""

    loss: Annotated[float | LinkSpread | None, LinkValue("loss")] = None
    """The fraction of packets (of 1,460 bytes) that are lost (`0.01` or `1%`); null is 0.

    A lost packet is sent again one round trip later, and what comes after it has to wait for it.
    """

    sites: Annotated[dict[str, LinkValues], LinksBySite()] = Field(default_factory=dict)
    """The same keys for single sites, in the place of those above: `{ site-1 { up = 1 Mbit } }`."""

    traces: Annotated[LinkTraces | None, TraceFile()] = None
    """A CSV file of how links change: the columns site, seconds, and any of up, down and latency.

    A row holds from its second on, up to the next of its site; the first one is at 0. A trace
    begins anew once its last row has held for as long as the one before. A rate may be 0 for a
    while. An empty cell, and a site that is not in the file, has what the keys above say.
    """

    @property
    def is_on(self) -> bool:
        """Whether links are emulated."""
        values = (self.up, self.down, self.latency, self.jitter, self.loss, self.traces)
        return bool(self.sites) or any(each is not None for each in values)

    def link(self, site: str, seed: int) -> NetworkLink:
        """Return the link of a site.

        Args:
            site: Name of the site.
            seed: Seed of the job.
        """
        own = self.sites.get(site, {})
        drawn = {}
        for key in LINK_KEYS:
            value = own.get(key, getattr(self, key))
            if isinstance(value, LinkSpread):
                value = LinkValue(key).bounded(value.draw(seed, key, site))
            if value is not None:
                drawn[key] = value
        link = NetworkLink(**drawn)
        traces = {} if self.traces is None else self.traces.sites
        return replace(link, trace=traces[site]) if site in traces else link

    def links(self, sites: Iterable[str], seed: int) -> dict[str, NetworkLink]:
        """Return the links of sites by their names; none where nothing is emulated.

        Args:
            sites: Names of the sites.
            seed: Seed of the job.
        """
        return {site: self.link(site, seed) for site in sites} if self.is_on else {}

    def unknown_sites(self, sites: list[str]) -> Iterator[Problem]:
        """Yield the problems of links of sites that a job does not have.

        Args:
            sites: Names of the job's sites.
        """
        known = set(sites)
        allowed = f"sites of the job, which are {sites[0]} to {sites[-1]}"
        if unknown := sorted(set(self.sites) - known):
            hint = did_you_mean(unknown[0], sites)
            yield Problem("sites", f"given {', '.join(unknown)}", allowed, hint)
        if self.traces is not None and (unknown := sorted(set(self.traces.sites) - known)):
            line = self.traces.lines[unknown[0]]
            where = f"{self.traces.path}, line {line}: {unknown[0]} is no site of the job"
            yield Problem("traces", where, f"a file of {allowed}", did_you_mean(unknown[0], sites))
