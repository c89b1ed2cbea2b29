"""Who runs which site and where updates wait follows from the job, and stays within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import a_job

from flstream.errors import UsageError
from flstream.server.task_plan import TaskPlan, plan_task

MIB = 1 << 20


def plan(count, parallel, model, cohort=None, is_ranked=False, at_site=False, **network):
    job = a_job(clients={"count": count, "parallel": parallel}, network=network)
    return plan_task(job, model, cohort or count, is_ranked=is_ranked, at_site=at_site)


def test_updates_stay_in_workers_that_are_the_sites_own():
    assert plan(4, 4, 5 << 30) == TaskPlan(own=True, sites=1, in_memory=False, group=0)
    assert plan(4, 9, 8) == TaskPlan(own=True, sites=1, in_memory=False, group=0)
    # Also if a round samples fewer of them.
    assert plan(4, 4, 5 << 30, cohort=2).own


def test_tiny_models_go_to_many_sites_at_once_and_wait_in_memory():
    assert plan(1000, 2, 2600, cohort=100) == TaskPlan(False, 50, True, 0)
    assert plan(1000, 2, 2600, cohort=3) == TaskPlan(False, 2, True, 0)
    assert plan(5000, 2, 1000) == TaskPlan(False, 64, True, 0)
    assert plan(3, 2, 0) == TaskPlan(False, 2, True, 0)


def test_each_site_has_a_task_of_its_own_where_links_are_emulated():
    assert plan(1000, 2, 2600, cohort=100, up="1 Mbit") == TaskPlan(False, 1, True, 0)
    assert plan(4, 2, MIB + 1, up="1 Mbit") == plan(4, 2, MIB + 1)
    assert plan(4, 4, 8, at_site=True, up="1 Mbit").own
    with pytest.raises(UsageError, match=r"set clients\.parallel = 4"):
        plan(4, 2, 8, at_site=True, up="1 Mbit")


def test_larger_models_go_to_a_site_at_a_time_and_wait_in_files():
    assert plan(4, 2, MIB) == TaskPlan(False, 2, True, 0)
    assert plan(4, 2, MIB + 1) == TaskPlan(False, 1, False, 0)


def test_more_updates_than_a_group_are_summed_up_unless_they_are_ranked():
    assert plan(5, 2, 2 * MIB) == TaskPlan(False, 1, False, 4)
    assert plan(9, 3, 2 * MIB).group == 6
    assert plan(9, 3, 2 * MIB, cohort=6).group == 0
    assert plan(9, 3, 2 * MIB, is_ranked=True).group == 0


@given(
    count=st.integers(1, 3000),
    parallel=st.integers(1, 16),
    model=st.integers(0, 64 * MIB),
    part=st.floats(0, 1),
    is_ranked=st.booleans(),
)
def test_what_waits_is_bounded_whatever_the_cohort(count, parallel, model, part, is_ranked):
    cohort = max(1, round(part * count))
    planned = plan(count, parallel, model, cohort, is_ranked)
    assert planned.sites >= 1
    if planned.own:
        assert parallel >= count
        return
    assert planned.sites * model <= max(8 * MIB, model)
    if planned.in_memory:
        assert cohort * model <= 16 * MIB
        assert planned.group == 0
    else:
        assert planned.sites == 1
    if planned.group:
        assert not is_ranked
        # Two workers' worth at least, so that nobody waits for the fold.
        assert planned.group >= 2 * parallel
        assert planned.group < cohort
