"""The disk that a run needs is told before it is taken."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.errors import SimulationError
from flstream.server.disk import DiskPlan, check_round, check_run, free_bytes

GIB = 1 << 30
RUN = Path("runs/x")


def plan(rounds=10, keep="all", model=5 * GIB, updates=0, partial_sum=0, optimizer_state=0):
    waiting = f"{updates} update{'s' if updates != 1 else ''} in waiting"
    passing = {
        waiting: updates * model,
        "the sum of updates and its successor": 2 * partial_sum,
    }
    return DiskPlan(rounds, keep, model, {"the server optimizer's state": optimizer_state}, passing)


def room(size):
    return lambda folder: size


EVERYTHING = plan(updates=2, partial_sum=8 * GIB, optimizer_state=5 * GIB // 2)


@pytest.mark.parametrize(
    ("disk", "present", "free", "words"),
    [
        (EVERYTHING, 0, 3 * GIB, "round 4 needs 33.5 GiB of disk (the next model 5 GiB, "),
        (EVERYTHING, 0, 3 * GIB, "the server optimizer's state 2.5 GiB, 2 updates in waiting 10"),
        (EVERYTHING, 0, 3 * GIB, "the sum of updates and its successor 16 GiB), and 3 GiB are"),
        (plan(), 0, GIB, "(the next model 5 GiB), and 1 GiB are free in runs/x; make room for 4"),
        (plan(updates=1), 0, GIB, "(the next model 5 GiB, 1 update in waiting 5 GiB)"),
        # What an earlier attempt left is not asked for again.
        (plan(updates=2), 10 * GIB, 4 * GIB, "10 GiB; 10 GiB of it are there already), and"),
        (plan(updates=2), 10 * GIB, 4 * GIB, "make room for 1 GiB more"),
        (plan(updates=2), 10 * GIB, 5 * GIB, None),
        # The last byte decides.
        (plan(), 0, 5 * GIB - 1, "make room for"),
        (plan(), 0, 5 * GIB, None),
        (plan(), 0, None, None),
    ],
)
def test_a_round_that_does_not_fit_is_refused_with_what_takes_how_much(disk, present, free, words):
    if words is None:
        check_round(disk, RUN, 4, present=present, free=room(free))
        return
    with pytest.raises(SimulationError) as caught:
        check_round(disk, RUN, 4, present=present, free=room(free))
    assert words in str(caught.value)


def warned(disk, done=0, stored=None, *, free, **rest):
    stored = done + 1 if stored is None else stored
    return check_run(disk, RUN, done=done, stored=stored, free=room(free), **rest)


def test_a_run_whose_first_round_does_not_fit_is_refused():
    with pytest.raises(SimulationError, match=r"^round 1 needs 5 GiB"):
        warned(plan(keep=1), free=GIB)
    with pytest.raises(SimulationError, match=r"^round 8 needs 5 GiB"):
        warned(plan(), 7, free=GIB)


@pytest.mark.parametrize(
    ("disk", "done", "free", "rest", "words"),
    [
        (plan(), 0, 50 * GIB, {}, None),
        (plan(), 0, None, {}, None),
        (plan(keep=3), 0, 20 * GIB, {}, None),
        (plan(), 10, 0, {}, None),
        (plan(updates=2), 8, 10 * GIB, {"present": 10 * GIB}, None),
        (plan(), 0, 55 * GIB, {"states": 5 * GIB}, None),
        (plan(), 0, 21 * GIB, {}, "10 rounds to come with checkpoints.keep = all take up to 50"),
        (plan(), 0, 21 * GIB, {}, "and round 5 may be the first that does not fit; make room, or"),
        (plan(), 0, 21 * GIB, {}, "set checkpoints.keep = 3"),
        (plan(keep=3), 0, 15 * GIB, {}, "make room, or set checkpoints.keep = 2"),
        (plan(), 8, 5 * GIB, {}, "2 rounds to come with"),
        (plan(updates=2), 8, 10 * GIB, {"present": 9 * GIB}, "2 rounds to come with"),
        (plan(), 0, 54 * GIB, {"states": 5 * GIB}, "and 5 GiB for states of the sites, 54 GiB"),
        # Of the next round it is not known whose states change: it is not refused.
        (plan(), 0, 10 * GIB, {"states": 9 * GIB}, "round 1 may be the first that does not fit"),
        (plan(keep=1), 0, 9 * GIB, {}, "make room, as even keep = 1 takes more"),
        # The place of the initial model serves a round too.
        (plan(rounds=3, keep=1), 0, 5 * GIB, {}, "round 3 may be the first that does not fit"),
    ],
)
def test_a_run_that_will_not_fit_is_warned_of_with_the_keep_that_would(
    disk, done, free, rest, words
):
    warning = warned(disk, done, free=free, **rest)
    assert warning is None if words is None else words in warning


PLANS = st.builds(
    plan,
    rounds=st.integers(1, 12),
    keep=st.just("all") | st.integers(1, 14),
    model=st.integers(1, 50),
    updates=st.integers(0, 3),
    partial_sum=st.integers(0, 60),
    optimizer_state=st.integers(0, 50),
)


def superseded(rounds, last, keep, best):
    """The rounds whose models go, once that of the last one is durable."""
    return [n for n in rounds if keep != "all" and n <= last - keep and n != best]


def fills(plan, free, best, done, stored):
    """Run a plan on a pretended disk; return the first round that does not fit, or None."""
    there, each = set(stored), plan.model + sum(plan.beside.values())
    passing = sum(plan.passing.values())
    for number in range(done + 1, plan.rounds + 1):
        if each + passing > free:
            return number
        there.add(number)
        free -= each
        gone = superseded(there, number, plan.keep, best if best < number else None)
        there -= set(gone)
        free += each * len(gone)
    return None


@given(plan=PLANS, free=st.integers(0, 1200), data=st.data())
def test_the_plan_agrees_with_a_run_on_a_pretended_disk(plan, free, data):
    best = data.draw(st.integers(1, plan.rounds), label="best")
    done = data.draw(st.integers(0, plan.rounds - 1), label="done")
    kept = set(range(done + 1)) - set(superseded(range(done + 1), done, plan.keep, best))
    try:
        warning = check_run(plan, RUN, done=done, stored=len(kept), free=room(free))
    except SimulationError:
        assert fills(plan, free, best, done, kept) == done + 1
        return
    # The best round is not known beforehand; on a resume, those that are gone were not the best.
    bests = range(1, plan.rounds + 1) if done == 0 else [best]
    full = [fills(plan, free, each, done, kept) for each in bests]
    if warning is None:
        assert full == [None] * len(full)
        return
    named = int(re.search(r"and round (\d+) may be the first", warning)[1])
    assert all(number is None or number >= named for number in full)
    if done == 0 and (plan.keep == "all" or plan.rounds > plan.keep + 1):
        assert named in full


@given(plan=PLANS, free=st.integers(0, 1200))
def test_the_keep_that_is_proposed_fits_and_the_next_larger_one_does_not(plan, free):
    def told(keep):
        return warned(replace(plan, keep=keep), free=free)

    try:
        warning = told(plan.keep)
    except SimulationError:
        return
    if warning is None:
        return
    if warning.endswith("as even keep = 1 takes more"):
        assert told(1) is not None
        return
    keep = int(warning.rpartition("checkpoints.keep = ")[2])
    assert told(keep) is None
    assert told(keep + 1) is not None


def test_the_free_space_is_what_an_ordinary_user_may_take(tmp_path, monkeypatch):
    # Blocks of 4 KiB; of the 100 that are free, 40 are kept back for root.
    usage = os.statvfs_result((1 << 20, 4096, 1000, 100, 60, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: usage)
    assert free_bytes(tmp_path) == 60 * 4096
    # One that tells no size is not taken for a full one.
    monkeypatch.setattr(os, "statvfs", lambda folder: os.statvfs_result((4096, 4096, *[0] * 8)))
    assert free_bytes(tmp_path) is None
    monkeypatch.undo()
    with pytest.raises(SimulationError, match=r"free in .*gone cannot be told: No such file"):
        free_bytes(tmp_path / "gone")
