"""Emulated links of a bench: the settings of jobs over them, and the seconds that they take."""

from __future__ import annotations

from typing import NamedTuple

from flstream.job.link import NetworkLink
from flstream.job.link_values import LINK_KEYS
from flstream.job.values import render_value

# A transfer is late only after so many times the seconds that its link takes, and these beside.
_PATIENCE = 4.0
_SPARE_SECONDS = 600.0
# As long as the job file's default, and longer where a link takes longer.
_LEAST_TASK_SECONDS = 3600.0


class LinkSeconds(NamedTuple):
    """Seconds that a link takes at least, without losses.

    Attributes:
        down: seconds for a model to a client.
        up: seconds for an update of it to the server.
    """

    down: float
    up: float


def link_seconds(link: NetworkLink | None, nbytes: int) -> LinkSeconds:
    """Compute the seconds that a link takes for a model in each direction.

    Args:
        link: the link of each client; None for no link, which takes no time.
        nbytes: size of the model in bytes.
    """
    if link is None:
        return LinkSeconds(0.0, 0.0)
    down, up = (8 * nbytes / rate if rate else 0.0 for rate in (link.down, link.up))
    return LinkSeconds(down + link.latency, up + link.latency)


def link_overrides(link: NetworkLink | None, nbytes: int) -> list[str]:
    """Return the overrides with which a job's sites have a link, and the time that it takes.

    Args:
        link: the link of each client; None for no link.
        nbytes: size of the model in bytes.
    """
    if link is None:
        return []
    values = {key: getattr(link, key) for key in LINK_KEYS}
    seconds = link_seconds(link, nbytes)
    request = _SPARE_SECONDS + _PATIENCE * max(seconds)
    task = max(_LEAST_TASK_SECONDS, 2 * request)
    return [
        f"network={render_value(values)}",
        f"streaming.streaming_per_request_timeout={request!r}",
        f"clients.round_timeout={task!r}",
    ]
