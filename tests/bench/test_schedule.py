"""The time left of a bench: from rates first, then from what runs took."""

import pytest

from flstream.bench.limits import MachineLimits
from flstream.bench.plan import Case, Plan
from flstream.bench.schedule import RunShare, Schedule
from flstream.telemetry.events import Progress, RoundFinished, RoundStarted, Transfer

GIB = 1 << 30
PULL, NATIVE = Case("pull", 2 << 20), Case("native", None)
PLAN = Plan(GIB, 2, ["pull", "native"], [2 << 20], None, 2)


def make_schedule():
    return Schedule({PULL: 10.0, NATIVE: 40.0}, [PULL, NATIVE, PULL, NATIVE])


def test_before_anything_ran_the_total_is_what_was_predicted():
    assert make_schedule().total() == 100.0
    assert make_schedule().left(elapsed=0.0, share=0.0) == 100.0


def test_a_slower_machine_pipe_means_longer_runs():
    fast = MachineLimits(1e10, {2 << 20: 4e9}, 1e9)
    slow = MachineLimits(1e10, {2 << 20: 1e9}, 1e9)
    assert PLAN.expected_seconds(PULL, slow) > PLAN.expected_seconds(PULL, fast)
    assert PLAN.expected_seconds(NATIVE, fast) > PLAN.expected_seconds(PULL, fast)


def test_a_run_that_took_twice_as_long_doubles_what_has_not_been_seen():
    schedule = make_schedule()
    schedule.taken.append(20.0)
    assert schedule.seconds(PULL) == 20.0
    assert schedule.seconds(NATIVE) == 80.0
    assert schedule.total() == 200.0
    assert schedule.left(elapsed=0.0, share=0.0) == 180.0


def test_a_run_under_way_is_judged_by_its_own_pace_the_more_the_further_it_is():
    schedule = make_schedule()
    later = 40.0 + 10.0 + 40.0
    assert schedule.left(elapsed=10.0, share=0.5) == pytest.approx(later + 0.5 * 15.0)
    assert schedule.left(elapsed=30.0, share=0.99) == pytest.approx(later, abs=0.5)


def test_what_was_dropped_is_not_waited_for():
    schedule = make_schedule()
    schedule.taken.append(10.0)
    schedule.drop(NATIVE)
    assert schedule.runs == [PULL, PULL]
    assert schedule.left(elapsed=0.0, share=0.0) == 10.0
    schedule.taken.append(10.0)
    assert schedule.left(elapsed=0.0, share=0.0) == 0.0


def test_the_share_of_a_run_rises_with_the_bytes_of_its_rounds():
    share = RunShare(PLAN.moved_bytes, expected=40.0)
    seen = [share.share(0.0), share.share(2.0)]
    share.apply(RoundStarted(round=1, sites=["site-1", "site-2"]))
    seen.append(share.share(5.0))
    share.apply(Progress(down={"site-1": GIB, "site-2": GIB}, up={}, size=GIB))
    seen.append(share.share(8.0))
    share.apply(Progress(down={}, up={"site-1": GIB}, size=GIB))
    seen.append(share.share(9.0))
    share.apply(RoundFinished(1, "", 1.0, 1.0, 1.0, 1.0, {}, {}, Transfer(), Transfer()))
    seen.append(share.share(10.0))
    share.apply(RoundStarted(round=1, sites=["site-1", "site-2"]))
    both = {"site-1": GIB, "site-2": GIB}
    share.apply(Progress(down=both, up=both, size=GIB))
    seen.append(share.share(20.0))
    assert seen == sorted(set(seen))
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
