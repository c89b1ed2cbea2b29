"""How far a run is, and about how long the rest takes."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from flstream.report.live.site_state import MOVING, WORKING
from flstream.report.live.state import RunState

# Slow is who takes this many times as long as the others took.
_SLOW = 2


class Done(NamedTuple):
    """How far the task under way is.

    Attributes:
        amount: bytes, or sites.
        total: of them; 0 if that is not known.
        is_bytes: which of the two.
        seconds_left: about; None if there is too little to go by.
    """

    amount: int
    total: int
    is_bytes: bool
    seconds_left: float | None


def seconds_left(state: RunState, now: float) -> float | None:
    """About how long it is until the job's last round is over; None if nobody can tell."""
    if state.phase in ("finished", "failed", "stopped"):
        return None
    return state.pace.seconds_left(state.rounds - state.round, now)


def task_done(state: RunState, now: float) -> Done | None:
    """How far the task under way is; None if there is none."""
    if state.phase == "folding":
        part = state.folded / max(state.model_bytes, 1)
        left = seconds_left_of(part, now - state.fold_began)
        return Done(state.folded, state.model_bytes, True, left)
    if not state.asked or state.phase not in WORKING:
        return None
    over, left = state.over, None
    if state.is_shared:  # one after another, so that those to come take as long as those before
        part = (over + len(state.failed)) / state.asked
        left = seconds_left_of(part, now - state.task_began)
    return Done(over, state.asked, False, left)


def download_done(state: RunState, now: float) -> Done | None:
    """How far the model's way to sites is, as long as that is all that they do."""
    under_way = [site for site in state.sites.values() if site.state == "downloading"]
    at_work = any(site.state in WORKING for site in state.sites.values())
    if not under_way or at_work or state.over or not state.model_bytes:
        return None
    total = len(under_way) * state.model_bytes
    moved = min(sum(site.down for site in under_way), total)
    return Done(moved, total, True, seconds_left_of(moved / total, now - state.task_began))


def seconds_left_of(done: float, seconds: float) -> float | None:
    """About how long the rest of something takes.

    Args:
        done: which part of it is done, from 0 to 1.
        seconds: that this took.

    Returns:
        None if there is too little to go by.
    """
    if done < 0.05 or seconds < 1.0:
        return None
    return seconds * (1 - min(done, 1.0)) / done


def slow_workers(state: RunState, now: float) -> set[str]:
    """The processes whose site takes long beside what a site has taken on average so far."""
    if not state.is_shared or state.over < len(state.workers):
        return set()
    typical = (now - state.task_began) * len(state.workers) / state.over
    return {
        name
        for name, work in state.workers.items()
        if work is not None and now - work.since > _SLOW * typical
    }


def slow_sites(state: RunState, now: float) -> set[str]:
    """The sites that are still at it, long after half of all were ready."""
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
