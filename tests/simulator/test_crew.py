"""Workers: kept while they are of use, replaced when not, and blamed for what is theirs alone."""

import signal

import pytest
from scripts import LARGE, QUIET, adding, noisy, of_kind, results

from flstream.telemetry.events import (
    Evaluated,
    ProcessReady,
    SiteBenched,
    SiteFailed,
    SiteState,
    Warned,
)

AFTER_SEND = """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params=model.params))
    {then}
"""


def test_a_worker_that_logs_after_it_has_answered_is_kept(jobs):
    run = jobs.run(AFTER_SEND.format(then="flare.log('x', 1.0)"), QUIET, "rounds=3")
    assert run.summary.status == "finished"
    pids = {(event.process, event.pid) for event in of_kind(run, ProcessReady)}
    assert len(pids) == 3  # the server, and two sites


def test_a_script_that_fails_after_it_has_answered_is_told_of_and_started_again(jobs):
    run = jobs.run(AFTER_SEND.format(then="raise KeyError('late')"), QUIET)
    assert run.summary.status == "finished"
    assert not run.summary.failures
    said = " ".join(event.message for event in of_kind(run, Warned))
    assert "site-1 was started again" in said
    assert "raised KeyError: 'late'" in said


def test_who_was_not_asked_is_not_late(jobs):
    run = jobs.run(
        noisy("threading.Event().wait(0.05)"),
        QUIET,
        LARGE,
        "rounds=3",
        "clients.count=12",
        "clients.parallel=2",
        "clients.min_updates=2",
        "clients.wait_after_min=10 ms",
    )
    assert run.summary.status == "finished", run.summary.error
    failed = of_kind(run, SiteFailed)
    assert all(event.late for event in failed)
    # No more can be late than there are workers.
    assert len(failed) <= 2 * 3
    assert not of_kind(run, SiteBenched)


def test_an_evaluation_that_is_stopped_does_not_count(jobs):
    waiting = """
import threading
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        if flare.get_site_name() == "site-2":
            threading.Event().wait()
        flare.send(flare.FLModel(metrics={"accuracy": 1.0}))
    else:
        flare.send(flare.FLModel(params=model.params))
"""

    def interrupt(event, sampler):
        if isinstance(event, SiteState) and event.site == "site-1" and event.state == "ready":
            answered.append(event.round)
            if len(answered) == 2:  # it has trained, and has evaluated
                signal.raise_signal(signal.SIGINT)

    answered = []
    run = jobs.run(waiting, listener=interrupt)
    assert run.summary.status == "stopped"
    assert not of_kind(run, Evaluated)


def test_a_diverged_metric_is_no_obstacle_to_going_on(jobs):
    deed = "metrics['loss'] = float('nan')"
    shared = (QUIET, LARGE, "clients.count=10", "clients.parallel=2")
    undisturbed = jobs.run(noisy(deed), *shared)

    def interrupt(event, sampler):
        if isinstance(event, SiteState) and (event.round, event.site) == (2, "site-9"):
            signal.raise_signal(signal.SIGINT)

    stopped = jobs.run(noisy(deed), *shared, listener=interrupt)
    assert stopped.summary.status == "stopped"
    resumed = jobs.go_on(stopped, noisy(deed), *shared)
    assert results(resumed)[0] == results(undisturbed)[0]


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("mode", ["pull", "native"])
def test_an_update_that_is_too_large_is_refused_before_it_is_fetched(jobs, parallel, mode):
    deed = "params['more'] = torch.zeros(60_000_000)"
    run = jobs.run(
        adding({("site-2", 1): deed}),
        QUIET,
        "rounds=1",
        "clients.count=4",
        f"clients.parallel={parallel}",
        "clients.min_updates=3",
        f"streaming.mode={mode}",
    )
    assert run.summary.status == "finished", run.summary.error
    (failure,) = run.summary.failures
    assert failure.site == "site-2"
    assert "does not fit the model" in failure.reason
    memory = run.summary.memory.server
    assert memory.peak_rss - memory.idle_rss < 64 << 20
