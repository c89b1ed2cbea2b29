"""Section of the job file that says what the links of the sites are like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from flstream.job.link import NetworkLink
from flstream.job.link_traces import TraceFile
from flstream.job.link_values import (
    LINK_KEYS,
    LinksBySite,
    LinkSpread,
    LinkValue,
)
from flstream.job.rules import Section


class NetworkSection(Section):
    """The links of the sites, emulated: what moves models is paced as if it came over them.

    A site's link is between it and all others. All that the site sends shares `up`, and all that it
    receives shares `down`. Models come out the same, bit for bit. Without any of these keys nothing
    is emulated. The page [network.md](network.md) says what is emulated and what is not.
    """

    up: Annotated[float | LinkSpread, LinkValue("up")] | None = None
    """What a site can send (bits a second: `10 Mbit`, `10 Mbit/s`); null is without limit.

    This and each of the next four keys is a value, or a distribution of which each site draws its
    own, by the job's seed and the site's name: `{ distribution = lognormal, median = 10 Mbit,
    sigma = 0.5 }`, where sigma is the standard deviation of the logarithm, or `{ distribution =
    uniform, low = 5 Mbit, high = 20 Mbit }`.
    """

    down: Annotated[float | LinkSpread, LinkValue("down")] | None = None
    """What a site can receive (bits a second); null is without limit."""

    latency: Annotated[float | LinkSpread, LinkValue("latency")] | None = None
    """How long a byte travels, one way (duration); a round trip takes twice as long; null is 0."""

    jitter: Annotated[float | LinkSpread, LinkValue("jitter")] | None = None
    """How much longer it may travel (duration), drawn uniformly; null is 0."""

    loss: Annotated[float | LinkSpread, LinkValue("loss")] | None = None
    """The fraction of packets (of 1,460 bytes) that are lost (`0.01` or `1%`); null is 0.

    A lost packet is sent again one round trip later, and what comes after it has to wait for it.
    """

    sites: LinksBySite = Field(default_factory=dict)
    """The same keys for single sites, in the place of those above: `{ site-1 { up = 1 Mbit } }`."""

    traces: TraceFile | None = None
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
