"""Workers: kept while they are of use, replaced when not, and blamed for what is theirs alone."""

import os
import signal

import pytest
from training_scripts import (
    LARGE,
    LEARNER,
    QUIET,
    adding,
    assert_rounds_are_means,
    cohorts,
    noisy,
    noisy_learner,
    of_kind,
    results,
    took_part,
)

from flstream.telemetry.events import (
    Evaluated,
    ProcessReady,
    RoundFinished,
    SiteBenched,
    SiteFailed,
    SitePhaseChanged,
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


# Dies as it is imported, in one of the workers.
DIES_IN = """
import multiprocessing, os, signal

if multiprocessing.current_process().name == {name!r}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_dies_at_its_first_import_each_time_is_done_without(jobs):
    shared = ["clients.count=6", "clients.parallel=3", *LEARNER]
    expected = jobs.run(noisy_learner(), *shared)
    run = jobs.run(DIES_IN.format(name="worker-2") + noisy_learner(), *shared)
    assert results(run) == results(expected)
    assert not run.summary.failures
    [warning] = run.summary.warnings
    assert warning.startswith("worker-2 did not get ready 3 times in a row: ")
    assert "its log is worker-2.log; the other workers go on without it" in warning


def test_a_job_of_which_no_worker_gets_ready_fails_with_a_sentence(jobs):
    shared = ["clients.count=6", "clients.parallel=2", *LEARNER]
    run = jobs.run("raise KeyError('early')\n" + noisy_learner(), *shared)
    assert run.summary.status == "failed"
    assert "did not get ready 3 times in a row: " in run.summary.error
    assert "KeyError: 'early'" in run.summary.error


def test_a_site_whose_process_never_gets_ready_fails_its_rounds_and_is_benched(jobs):
    script = DIES_IN.format(name="site-2") + adding({})
    run = jobs.run(script, "clients.count=3", "clients.min_updates=2", "rounds=3", QUIET)
    assert run.summary.status == "finished", run.summary.error
    assert list(took_part(run).values()) == [["site-1", "site-3"]] * 3
    assert_rounds_are_means(run)
    assert {failure.site for failure in run.summary.failures} == {"site-2"}
    assert all(each.reason == "site-2 was killed by SIGKILL" for each in run.summary.failures)
    assert run.summary.benched == ["site-2"]
    assert cohorts(run)[-1] == ["site-1", "site-3"]


def test_the_server_has_no_more_files_open_for_the_processes_it_has_replaced(jobs):
    # One site dies in each round, and has a new process in the next.
    rounds = 16
    deeds = {("site-2", number): "os.kill(os.getpid(), 9)" for number in range(1, rounds)}
    pids, counts = {}, []

    def count(event, sampler):
        if isinstance(event, ProcessReady):
            pids.setdefault(event.process, []).append(event.pid)
        if isinstance(event, RoundFinished):
            counts.append(len(os.listdir(f"/proc/{pids['server'][0]}/fd")))

    sites = ["clients.count=2", "clients.min_updates=1", "clients.bench_after=0"]
    run = jobs.run(adding(deeds), *sites, f"rounds={rounds}", QUIET, listener=count)
    assert run.summary.status == "finished", run.summary.error
    assert len(set(pids["site-2"])) == rounds
    # Each process has four pipes. Those of two may be there at a time: one goes, another comes.
    # And no model is open that no round needs: a file that was removed would take its disk still.
    assert max(counts) - min(counts) <= 6


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
    # No more can be late than workers are at, and have just sent the updates of.
    assert len(failed) <= 2 * 2 * 3
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
        if (
            isinstance(event, SitePhaseChanged)
            and event.site == "site-1"
            and event.state == "ready"
        ):
            answered.append(event.round)
            if len(answered) == 2:  # it has trained, and has evaluated
                signal.raise_signal(signal.SIGINT)

    answered = []
    run = jobs.run(waiting, listener=interrupt)
    assert run.summary.status == "stopped"
    assert not of_kind(run, Evaluated)


def test_a_diverged_metric_is_no_obstacle_to_going_on(jobs):
    deed = "metrics['loss'] = float('nan')"
    shared = (QUIET, LARGE, "clients.count=4", "clients.parallel=2")
    undisturbed = jobs.run(noisy(deed), *shared)

    def interrupt(event, sampler):
        if isinstance(event, SitePhaseChanged) and (event.round, event.site) == (2, "site-4"):
            signal.raise_signal(signal.SIGINT)

    stopped = jobs.run(noisy(deed), *shared, listener=interrupt)
    assert stopped.summary.status == "stopped"
    resumed = jobs.go_on(stopped, noisy(deed), *shared)
    assert results(resumed)[0] == results(undisturbed)[0]


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("mode", ["pull", "native"])
def test_an_update_that_is_too_large_is_refused_before_it_is_fetched(jobs, parallel, mode):
    deed = "params['more'] = torch.zeros(20_000_000)"
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
    assert memory.peak_rss - memory.idle_rss < 40 << 20  # half of it
