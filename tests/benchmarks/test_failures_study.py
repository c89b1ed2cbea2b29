"""Figures of benchmarks/failures.py from the journal of a run."""

from failures import add_up
from training_scripts import QUIET, adding

TRACE = "site,seconds,available\nsite-2,0,1\nsite-2,3,0\nsite-2,5,1\nsite-2,1000,0\n"
CLOCK = "time={clock=virtual, seconds_per_example=1 s}"


def test_goodput_is_the_share_of_all_time_that_is_in_a_model(jobs):
    (jobs.folder / "there.csv").write_text(TRACE)
    how = [CLOCK, QUIET, "clients.count=2", "rounds=2", "devices={a {available=there.csv}}"]
    kind = "workflow={type=decoupled_diloco, args{quorum=%s}}"
    # Site n trains n seconds. The second step waits for site-2, which is away from 3 s to 5 s, and
    # ends at 7 s: there are 1 + 2 + 1 + 2 of 14 s in models.
    figures = add_up(jobs.run(adding({}), *how, kind % 2).directory.path, 2)
    assert figures == (6 / 14, 1.0, 1, 2 / 7, 0.0)
    # Each answer of site-1 is a step; the second one has the first of site-2, too, which is late.
    figures = add_up(jobs.run(adding({}), *how, kind % 1).directory.path, 2)
    assert figures == (4 / 4, 0.0, 0, 2 / 2, 1 / 3)
