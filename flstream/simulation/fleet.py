"""Facts about the devices of a job's sites, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from flstream.job import Job


@dataclass(frozen=True)
class FleetFacts:
    """Facts about the devices of all sites.

    Attributes:
        sites: Number of sites by the name of their device, the most frequent first.
        speed: Median speed, in units of a device of speed 1.
        down: Median of the bits a second that they can receive; None for no limit.
        up: Median of the bits a second that they can send; None for no limit.
        latency: Median latency in seconds.
        without_memory: Number of sites that have not the memory for the model.
    """

    sites: Mapping[str, int]
    speed: float
    down: float | None
    up: float | None
    latency: float
    without_memory: int


def fleet_facts(job: Job, model_bytes: int) -> FleetFacts | None:
    """Return the facts about the devices of a job's sites; None for a job without devices.

    Args:
        job: The job.
        model_bytes: Size of its model.
    """
    if not job.devices.is_on:
        return None
    names, lacking = Counter[str](), 0
    values = np.empty((job.clients.count, 4))
    for place, site in enumerate(job.clients.site_names):
        device = job.device(site)
        names[device.name] += 1
        lacking += device.memory is not None and device.memory < model_bytes
        values[place] = (
            device.speed,
            inf if device.down is None else device.down,
            inf if device.up is None else device.up,
            device.latency,
        )
    speed, down, up, latency = (float(median) for median in np.median(values, axis=0))
    return FleetFacts(
        sites=dict(names.most_common()),
        speed=speed,
        down=None if down == inf else down,
        up=None if up == inf else up,
        latency=latency,
        without_memory=lacking,
    )
