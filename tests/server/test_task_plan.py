"""Who runs which site and where updates wait follows from the job, and stays within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import a_job

from flstream.errors import UsageError
from flstream.model.layout import Layout
from flstream.server.task_plan import TaskPlan, plan_task

MIB = 1 << 20


def plan(count, parallel, model, cohort=None, needs_all_updates=False, at=(), **network):
    job = a_job(clients={"count": count, "parallel": parallel}, network=network)
    layout = Layout.of([("w", "U8", (model,))])
    return plan_task(job, layout, cohort or count, needs_all_updates=needs_all_updates, at=at)


OWN = TaskPlan(True, 1, False, False, 0)
GROUPED = TaskPlan(False, 1, False, True, 4)


@pytest.mark.parametrize(
    ("job", "due"),
    [
        # Updates stay in workers that are the sites' own, also if a round samples fewer of them.
        ((4, 4, 5 << 30), OWN),
        ((4, 9, 8), OWN),
        ((4, 4, 5 << 30, 2), OWN),
        # Tiny models go to many sites at once, and wait in memory.
        ((1000, 2, 2600, 100), TaskPlan(False, 50, True, False, 0)),
        ((1000, 2, 2600, 3), TaskPlan(False, 2, True, False, 0)),
        ((5000, 2, 1000), TaskPlan(False, 64, True, False, 0)),
        ((3, 2, 0), TaskPlan(False, 2, True, False, 0)),
        # Larger ones go to a site at a time, and wait in files.
        ((4, 2, MIB), TaskPlan(False, 2, True, False, 0)),
        ((4, 2, MIB + 1), TaskPlan(False, 1, False, True, 0)),
        # More than a group are summed up, unless they are ranked.
        ((5, 2, 2 * MIB), GROUPED),
        ((9, 3, 2 * MIB), GROUPED._replace(sum_group=6)),
        ((9, 3, 2 * MIB, 6), GROUPED._replace(sum_group=0)),
        ((9, 3, 2 * MIB, 9, True), GROUPED._replace(sum_group=0)),
    ],
)
def test_who_runs_which_site_follows_from_the_job(job, due):
    assert plan(*job) == due


def test_each_site_has_a_task_of_its_own_where_links_are_emulated():
    assert plan(1000, 2, 2600, cohort=100, up="1 Mbit") == TaskPlan(False, 1, False, True, 4)
    assert plan(4, 2, MIB + 1, up="1 Mbit") == plan(4, 2, MIB + 1)
    assert plan(4, 4, 8, at=["site-1"], up="1 Mbit").has_own_workers
    with pytest.raises(UsageError, match=r"set clients\.parallel = 4"):
        plan(4, 2, 8, at=["site-1"], up="1 Mbit")


@given(
    count=st.integers(1, 3000),
    parallel=st.integers(1, 16),
    model=st.integers(0, 64 * MIB),
    part=st.floats(0, 1),
    needs_all_updates=st.booleans(),
)
def test_what_waits_is_bounded_whatever_the_cohort(count, parallel, model, part, needs_all_updates):
    cohort = max(1, round(part * count))
    planned = plan(count, parallel, model, cohort, needs_all_updates)
    assert planned.batch_size >= 1
    if planned.has_own_workers:
        assert parallel >= count
        return
    assert planned.batch_size * model <= max(4 * MIB, model)
    if planned.is_inline:
        assert cohort * model <= 16 * MIB
        assert planned.sum_group == 0
    else:
        assert planned.batch_size == 1
    if planned.sum_group:
        assert not needs_all_updates
        # Two workers' worth at least, so that nobody waits for the fold.
        assert planned.sum_group >= 2 * parallel
        assert planned.sum_group < cohort
