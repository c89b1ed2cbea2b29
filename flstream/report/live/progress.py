"""Progress of a run's current task, the predicted time left, and sites that are slow."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from flstream.report.live.site_state import MOVING, WORKING
from flstream.report.live.state import RunState

# Multiple of the other sites' time from which on a site counts as slow.
_SLOW = 2


class Done(NamedTuple):
    """Progress of a task.

    Attributes:
        amount: bytes or sites that are done.
        total: bytes or sites of the whole task; 0 if not known.
        is_bytes: whether the amounts are bytes, not sites.
        seconds_left: predicted seconds until the end of the task; None if not known yet.
    """

    amount: int
    total: int
    is_bytes: bool
    seconds_left: float | None


def seconds_left(state: RunState, now: float) -> float | None:
    """Predict the seconds until the end of the job; None if not known yet, or it has ended."""
    if state.phase in ("finished", "failed", "stopped"):
        return None
    return state.pace.seconds_left(state.rounds - state.round, now)


def task_done(state: RunState, now: float) -> Done | None:
    """Return the progress of the current task; None if there is none."""
    if state.phase == "folding":
        part = state.folded / max(state.model_bytes, 1)
        left = seconds_left_of(part, now - state.fold_began)
        return Done(state.folded, state.model_bytes, True, left)
    if not state.asked or state.phase not in WORKING:
        return None
    over, left = state.over, None
    if state.is_shared:  # sites run one after another, so the rate so far predicts the rest
        part = (over + len(state.failed)) / state.asked
        left = seconds_left_of(part, now - state.task_began)
    return Done(over, state.asked, False, left)


def download_done(state: RunState, now: float) -> Done | None:
    """Return the progress of the model's download to sites; None once a site is training."""
    under_way = [site for site in state.sites.values() if site.state == "downloading"]
    at_work = any(site.state in WORKING for site in state.sites.values())
    if not under_way or at_work or state.over or not state.model_bytes:
        return None
    total = len(under_way) * state.model_bytes
    moved = min(sum(site.down for site in under_way), total)
    return Done(moved, total, True, seconds_left_of(moved / total, now - state.task_began))


def seconds_left_of(done: float, seconds: float) -> float | None:
    """Predict the seconds until the end of a task.

    Args:
        done: share of the task that is done, from 0 to 1.
        seconds: seconds since the task began.

    Returns:
        The seconds left; None if too little is done to predict them.
    """
    if done < 0.05 or seconds < 1.0:
        return None
    return seconds * (1 - min(done, 1.0)) / done


def slow_workers(state: RunState, now: float) -> set[str]:
    """Return the shared workers whose current site takes much longer than the average site."""
    if not state.is_shared or state.over < len(state.workers):
        return set()
    typical = (now - state.task_began) * len(state.workers) / state.over
    return {
        name
        for name, work in state.workers.items()
        if work is not None and now - work.since > _SLOW * typical
    }


def slow_sites(state: RunState, now: float) -> set[str]:
    """Return the sites that are still working long after half of all were ready."""
    began = state.task_began
    ready = [
        site.since - began
        for site in state.sites.values()
        if site.state == "ready" and site.since >= began
    ]
    if not ready or 2 * len(ready) < state.asked or state.phase not in WORKING:
        return set()
    if now - began <= _SLOW * median(ready):
        return set()
    return {site.name for site in state.sites.values() if site.state in MOVING | WORKING}
