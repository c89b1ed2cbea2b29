"""Workers: kept while they are of use, replaced when not, and blamed for what is theirs alone."""

import signal

import pytest
from training_scripts import (
    LARGE,
    LEARNER,
    QUIET,
    adding,
    check_rounds_are_means,
    cohorts,
    noisy,
    of_kind,
    took_part,
)

from flstream.telemetry.events import (
    Evaluated,
    ProcessReady,
    SiteFailed,
    SitePhaseChanged,
    SiteSuspended,
    Warned,
)

pytestmark = pytest.mark.usefixtures("processes")
AFTER_SEND = """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params=model.params))
    flare.log("x", 1.0)
    if flare.get_site_name() == "site-2":
        raise KeyError("late")
"""
# Dies as it is imported, in one of the workers.
DIES_IN = """
import multiprocessing, os, signal

if multiprocessing.current_process().name == {name!r}:
    os.kill(os.getpid(), signal.SIGKILL)
"""
LEARNS = """
import flstream.client as flare

class Sites(flare.Learner):
    def train(self, model):
        model.params["w"] += 1
        return flare.FLModel(params=model.params)
"""


def test_a_worker_that_logs_after_its_answer_is_kept_and_one_that_fails_then_is_replaced(jobs):
    run = jobs.run(AFTER_SEND, QUIET).finished()
    assert not run.summary.failures
    pids = {}
    for event in of_kind(run, ProcessReady):
        pids.setdefault(event.process, set()).add(event.pid)
    assert (len(pids["site-1"]), len(pids["site-2"]) > 1) == (1, True)
    messages = " ".join(event.message for event in of_kind(run, Warned))
    assert "site-2 was started again" in messages
    assert "raised KeyError: 'late'" in messages


def test_a_worker_that_dies_at_its_first_import_each_time_is_done_without(jobs):
    script = DIES_IN.format(name="worker-2") + LEARNS
    run = jobs.run(script, QUIET, "clients.count=6", "clients.parallel=3", *LEARNER)
    assert (run.summary.status, run.summary.failures) == ("finished", [])
    [warning] = run.summary.warnings
    assert warning.startswith("worker-2 did not get ready 3 times in a row: ")
    assert "its log is worker-2.log; the other workers go on without it" in warning


def test_a_job_of_which_no_worker_gets_ready_fails_with_the_reason(jobs):
    shared = ["clients.count=6", "clients.parallel=2", *LEARNER]
    run = jobs.run("raise KeyError('early')\n" + LEARNS, *shared)
    assert run.summary.status == "failed"
    assert "did not get ready 3 times in a row: " in run.summary.error
    assert "KeyError: 'early'" in run.summary.error


def test_a_site_whose_process_never_gets_ready_fails_its_rounds_and_is_suspended(jobs):
    script = DIES_IN.format(name="site-2") + adding({})
    run = jobs.run(script, "clients.count=3", "clients.min_updates=2", "rounds=3", QUIET).finished()
    assert list(took_part(run).values()) == [["site-1", "site-3"]] * 3
    check_rounds_are_means(run)
    reasons = {(failure.site, failure.reason) for failure in run.summary.failures}
    assert reasons == {("site-2", "site-2 was killed by SIGKILL")}
    assert run.summary.benched == ["site-2"]
    assert cohorts(run)[-1] == ["site-1", "site-3"]


def test_who_was_not_asked_is_not_late(jobs):
    how = ["clients.min_updates=2", "clients.wait_after_min=10 ms", "clients.parallel=2"]
    run = jobs.run(
        noisy("threading.Event().wait(0.05)"), QUIET, LARGE, "clients.count=12", *how
    ).finished()
    failed = of_kind(run, SiteFailed)
    assert all(event.late for event in failed)
    # No more can be late than workers are at, and have just sent the updates of.
    assert len(failed) <= 2 * 2 * 2
    assert not of_kind(run, SiteSuspended)


SCORES = "        flare.send(flare.FLModel(metrics="
WAITS = f'        _ = site == "site-2" and threading.Event().wait()\n{SCORES}'


def test_an_evaluation_that_is_stopped_does_not_count(jobs):
    def interrupt(event, sampler):
        if isinstance(event, SitePhaseChanged) and (event.site, event.state) == ("site-1", "ready"):
            answered.append(event.round)
            if len(answered) == 2:  # it has trained, and has evaluated
                signal.raise_signal(signal.SIGINT)

    answered = []
    run = jobs.run(adding({}).replace(SCORES, WAITS), listener=interrupt)
    assert run.summary.status == "stopped"
    assert not of_kind(run, Evaluated)


@pytest.mark.parametrize(("parallel", "mode"), [(1, "pull"), (4, "native")])
def test_an_update_that_is_too_large_is_refused_before_it_is_fetched(jobs, parallel, mode):
    script = adding({("site-2", 1): "params['more'] = torch.zeros(20_000_000)"})
    how = ["rounds=1", "clients.count=4", "clients.min_updates=3", f"clients.parallel={parallel}"]
    run = jobs.run(script, QUIET, *how, f"streaming.mode={mode}").finished()
    (failure,) = run.summary.failures
    assert failure.site == "site-2"
    assert "does not fit the model" in failure.reason
    memory = run.summary.memory.server
    assert memory.peak_rss - memory.idle_rss < 40 << 20  # half of it
