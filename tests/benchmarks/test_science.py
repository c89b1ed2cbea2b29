"""The figures of workflows on the virtual clock."""

import math

import science

from flstream.runs.summary import Summary


def runs(*seconds):
    """Summaries of runs that reached the accuracy after so many seconds, or never (None)."""
    early = "accuracy reached 0.95 >= 0.95 in round 30"
    return [
        Summary(simulated_seconds=time or 999.0, ended_early=time and early, rounds_completed=30)
        for time in seconds
    ]


def test_a_workflow_takes_the_median_of_its_times_and_forever_where_it_never_got_there():
    time, updates, size = science.clock_rows("fedbuff", 2, runs(30.0, 10.0, None), 60.0)
    assert (time.value, time.ratio, time.is_met) == (30.0, 0.5, True)
    assert time.spread == "(30, 10, inf)"
    assert (updates.value, updates.unit, size.value) == (60, "updates", 0)
    late, *_ = science.clock_rows("fedbuff", 2, runs(30.0, None, None), 60.0)
    assert (late.value, late.is_met) == (math.inf, False)
    first, *_ = science.clock_rows("fedavg", 20, runs(40.0))
    assert (first.limit, first.most) == (40.0, None)


def test_all_workflows_on_the_clock_are_scored_after_as_many_updates():
    for updates, _ in science.CLOCKED.values():
        assert science.SCORED_AFTER % updates == science.MOST_UPDATES % updates == 0
