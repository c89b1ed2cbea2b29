"""A worker that is lost before it acknowledged a task has failed nobody."""

import pytest
from training_scripts import noisy, of_kind, results, took_part

from flstream.telemetry.events import ProcessReady, SiteFailed

# Site 2 ends in the middle of the send() of its first training, when it is told that the server is
# done with its update; and so many processes after that end as soon as they are ready for a task.
DIES = """
import os, pathlib
import flstream.client as flare
from flstream.client import session

deaths = pathlib.Path(__file__).with_name("deaths")
flare.init()
if flare.get_site_name() == "site-2":
    if deaths.exists() and (left := int(deaths.read_text())):
        deaths.write_text(str(left - 1))
        os._exit(9)
    if not deaths.exists():
        service = session.current().worker._service
        offer = service.offer

        def offering(source, receivers, **how):
            def end(_):
                deaths.write_text("%d")
                os._exit(9)

            ref = offer(source, receivers, **how)
            ref._after_settled = end
            return ref

        service.offer = offering
"""
THREE = ["rounds=3", "clients.min_updates=1"]
QUIET = "workflow.args.evaluate_every=0"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """Results of a run in which nobody dies."""
    jobs = jobs_in(tmp_path_factory.mktemp("undisturbed"))
    return results(jobs.run(noisy(), *THREE, QUIET))


def starts(run):
    """How many processes a site has had."""
    return [each.process for each in of_kind(run, ProcessReady)].count("site-2")


@pytest.mark.parametrize("deaths", [0, 1])
def test_a_site_that_dies_once_its_update_is_settled_loses_nothing(jobs, undisturbed, deaths):
    run = jobs.run(DIES % deaths + noisy(), *THREE, QUIET)
    # The next round is given to a new process, which goes on with the state that was kept.
    assert results(run) == undisturbed
    assert run.summary.failures == []
    assert starts(run) == 2 + deaths
    assert took_part(run) == {each: ["site-1", "site-2"] for each in (1, 2, 3)}


def test_three_losses_in_a_row_fail_the_site_for_that_round(jobs):
    run = jobs.run(DIES % 3 + noisy(), *THREE, QUIET)
    assert run.summary.status == "finished", run.summary.error
    [failed] = of_kind(run, SiteFailed)
    assert (failed.round, failed.site) == (2, "site-2")
    assert "site-2" in failed.reason
    # What it was lost for is over then: the next round is given to a new process.
    assert took_part(run) == {1: ["site-1", "site-2"], 2: ["site-1"], 3: ["site-1", "site-2"]}
    assert starts(run) == 5


def test_where_every_site_has_to_answer_three_losses_fail_the_run(jobs):
    run = jobs.run(DIES % 3 + noisy(), "rounds=3", QUIET)
    assert run.summary.status == "failed"
    assert "1 of 2 sites are left to train round 2, and 2 have to" in run.summary.error
    assert run.summary.rounds_completed == 1
