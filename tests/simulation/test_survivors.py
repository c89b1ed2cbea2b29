"""A site that fails contributes nothing, not a part, and the others' round goes on."""

import os
import signal
import threading

import pytest
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import (
    LARGE,
    QUIET,
    adding,
    assert_rounds_are_means,
    cohorts,
    of_kind,
    took_part,
)

from flstream.telemetry.events import SiteBenched, SiteFailed

FOUR = ["site-1", "site-2", "site-3", "site-4"]
PLACES = {
    "a process each": ["clients.count=4"],
    "in memory": ["clients.count=4", "clients.parallel=2"],
    "in files": ["clients.count=4", "clients.parallel=2", LARGE],
}
NAN = "params['w'][len(params['w']) // 2] = float('nan')"


@pytest.fixture(autouse=True)
def impatient():
    """A run that hangs is stopped, and so does not finish."""
    timer = threading.Timer(300, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    yield
    timer.cancel()


def reasons(run):
    return {(event.round, event.site): event.reason for event in of_kind(run, SiteFailed)}


# One misdeed a round, each of another site, and a round without one in the end.
MISDEEDS = {
    ("site-2", 1): ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    ("site-3", 2): ("raise KeyError('oops')", "client.py, line "),
    ("site-1", 3): (NAN, "the update of site-1 is not finite: tensor 'w' at ["),
    ("site-4", 4): ("params['b'] = params['b'].T", "tensor 'b' has shape [5, 3] instead of [3, 5]"),
    ("site-2", 5): ("params.pop('w')", "tensor 'w' is missing"),
    ("site-3", 6): ("raise SystemExit(4)", "client.py exited with status 4"),
}


@first_and_nightly("place", PLACES.values(), ids=PLACES)
def test_the_model_is_exactly_the_mean_of_those_that_did_not_fail(jobs, place):
    script = adding({when: deed for when, (deed, _) in MISDEEDS.items()})
    run = jobs.run(script, *place, "clients.min_updates=3", "rounds=7", QUIET)
    assert run.summary.status == "finished", run.summary.error
    # Each of them, dead or not, takes part again in the next round.
    guilty = {number: site for site, number in MISDEEDS}
    assert took_part(run) == {
        number: [site for site in FOUR if site != guilty.get(number)] for number in range(1, 8)
    }
    assert_rounds_are_means(run)
    found = reasons(run)
    assert sorted(found) == sorted((number, site) for site, number in MISDEEDS)
    for (site, number), (_, words) in MISDEEDS.items():
        assert words in found[number, site]
    assert "raised KeyError: 'oops'" in found[2, "site-3"]
    assert "KeyError: 'oops'" in run.directory.site_log("site-3").read_text()


def test_the_line_of_the_script_that_raised_is_the_one_that_is_named(jobs):
    script = adding({("site-2", 1): "raise KeyError('oops')"})
    run = jobs.run(script, "clients.count=2", "clients.min_updates=1", "rounds=1", QUIET)
    line = script.splitlines().index("        raise KeyError('oops')") + 1
    assert f"client.py, line {line} raised KeyError: 'oops'" in reasons(run)[1, "site-2"]


def test_a_sum_in_files_is_exactly_that_of_those_that_did_not_fail(jobs):
    deeds = {
        ("site-2", 1): "os.kill(os.getpid(), signal.SIGKILL)",
        ("site-3", 1): NAN,
        ("site-6", 1): "params['b'] = params['b'].half()",
    }
    six = ["clients.count=6", "clients.parallel=2", "clients.min_updates=3"]
    run = jobs.run(adding(deeds), *six, LARGE, "rounds=2", QUIET)
    assert run.summary.status == "finished", run.summary.error
    assert took_part(run)[1] == ["site-1", "site-4", "site-5"]
    assert len(took_part(run)[2]) == 6
    assert_rounds_are_means(run)


def test_so_many_failures_that_no_group_is_full_do_not_keep_the_others_waiting(jobs):
    # Two workers: groups of four, and eight sites at most ahead of the fold.
    deeds = {(f"site-{number}", 1): "raise KeyError('oops')" for number in range(1, 6)}
    ten = ["clients.count=10", "clients.parallel=2", "clients.min_updates=5"]
    run = jobs.run(adding(deeds), *ten, LARGE, "rounds=1", QUIET)
    assert run.summary.status == "finished", run.summary.error
    assert took_part(run)[1] == [f"site-{number}" for number in range(6, 11)]
    assert_rounds_are_means(run)


def test_a_worker_that_dies_among_many_sites_costs_only_the_guilty_one(jobs):
    deeds = {("site-3", 2): "os.kill(os.getpid(), signal.SIGKILL)"}
    ten = ["clients.count=10", "clients.parallel=2", "clients.min_updates=9", "rounds=3"]
    run = jobs.run(adding(deeds), *ten, QUIET)
    assert run.summary.status == "finished", run.summary.error
    assert list(reasons(run)) == [(2, "site-3")]
    assert [len(sites) for sites in took_part(run).values()] == [10, 9, 10]
    assert_rounds_are_means(run)


# Its process is killed when the middle of its update is to be sent.
KILLED_HALFWAY = """
class Killed:
    random_access, lendable, extent, deliver, changed = True, False, None, None, None

    def __init__(self, body):
        self.layout, self.body = body.layout, body

    def views(self, start, stop, scratch):
        if stop > self.layout.nbytes // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.body.views(start, stop, scratch)

service = flare.session.current().worker._service
offer = service.offer
service.offer = lambda source, receivers, **how: offer(Killed(source), receivers, **how)
"""


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_client_killed_in_the_middle_of_its_upload_leaves_no_trace(jobs, mode):
    run = jobs.run(
        adding({("site-2", 1): KILLED_HALFWAY}),
        "clients.count=4",
        "clients.min_updates=3",
        "model.args.elements=2000000",
        "streaming.tensor_download_chunk_size=64 KiB",
        f"streaming.mode={mode}",
        QUIET,
    )
    assert run.summary.status == "finished", run.summary.error
    assert took_part(run) == {1: ["site-1", "site-3", "site-4"], 2: FOUR}
    assert_rounds_are_means(run)
    (failure,) = run.summary.failures
    assert (failure.reason, failure.signal) == ("site-2 was killed by SIGKILL", "SIGKILL")


def test_below_min_updates_the_job_fails_with_each_site_and_its_reason(jobs):
    deeds = {
        ("site-2", 2): "os.kill(os.getpid(), signal.SIGKILL)",
        ("site-3", 2): NAN,
        ("site-4", 1): "raise KeyError('oops')",
    }
    run = jobs.run(adding(deeds), "clients.count=4", "clients.min_updates=3", QUIET)
    assert run.summary.status == "failed"
    assert run.summary.rounds_completed == 1
    assert "2 of 4 sites are left to train round 2, and 3 have to" in run.summary.error
    assert "site-2: " in run.summary.error
    assert "site-3: the update of site-3 is not finite: tensor 'w'" in run.summary.error
    assert "its log is sites/site-3/log.txt" in run.summary.error
    assert "site-4: " not in run.summary.error
    assert run.directory.checkpoint(1).exists()
    assert not run.directory.checkpoint(2).exists()


@first_and_nightly("place", PLACES.values(), ids=PLACES)
def test_a_site_that_stalls_is_given_up_and_has_a_new_process_in_the_next_round(jobs, place):
    script = adding({("site-2", 1): "threading.Event().wait()"})
    # Sites that share a task share its time, so that two of them have twice as much.
    timeout = "clients.round_timeout=1500 ms"
    run = jobs.run(script, *place, "clients.min_updates=3", timeout, QUIET)
    assert run.summary.status == "finished", run.summary.error
    assert took_part(run) == {1: ["site-1", "site-3", "site-4"], 2: FOUR}
    assert_rounds_are_means(run)
    assert "did not answer its train task in the time it was given" in reasons(run)[1, "site-2"]


@first_and_nightly("place", PLACES.values(), ids=PLACES)
def test_a_round_is_closed_early_once_enough_are_in(jobs, place):
    script = adding({("site-4", 1): "threading.Event().wait()"})
    # A second, and in the second round no one waits for it: a busy machine starts a new process
    # for the fourth site and trains there well within that.
    enough = ["clients.min_updates=2", "clients.wait_after_min=1 s"]
    run = jobs.run(script, *place, *enough, QUIET)
    assert run.summary.status == "finished", run.summary.error
    first, second = took_part(run).values()
    assert "site-4" not in first
    assert len(first) >= 2
    assert "site-4" in second
    assert_rounds_are_means(run)
    assert "clients.wait_after_min" in reasons(run)[1, "site-4"]


@pytest.mark.parametrize("place", [PLACES["a process each"], PLACES["in memory"]])
def test_a_site_that_fails_twice_in_a_row_is_asked_no_more(jobs, place):
    deeds = {("site-3", number): "raise KeyError('oops')" for number in (1, 3, 4, 5)}
    run = jobs.run(adding(deeds), *place, "clients.min_updates=3", "rounds=6")
    assert run.summary.status == "finished", run.summary.error
    others = [site for site in FOUR if site != "site-3"]
    assert cohorts(run) == [FOUR, FOUR, FOUR, FOUR, others, others]
    [benched] = of_kind(run, SiteBenched)
    assert (benched.round, benched.site, benched.failures) == (4, "site-3", 2)
    assert_rounds_are_means(run)


def test_no_site_is_benched_if_the_job_says_so(jobs):
    deeds = {("site-3", number): "raise KeyError('oops')" for number in (1, 2, 3)}
    four = ["clients.count=4", "clients.min_updates=3", "clients.bench_after=0"]
    run = jobs.run(adding(deeds), *four, "rounds=4", QUIET)
    assert run.summary.status == "finished", run.summary.error
    assert took_part(run)[4] == FOUR


def test_a_site_that_fails_to_evaluate_does_not_end_the_run(jobs):
    script = adding({}).replace(
        "if flare.is_evaluate():",
        "if flare.is_evaluate():\n        if site == 'site-2': raise KeyError('score')",
    )
    run = jobs.run(script, "clients.count=3", "clients.min_updates=2", "rounds=2")
    assert run.summary.status == "finished", run.summary.error
    assert "KeyError: 'score'" in reasons(run)[1, "site-2"]
    assert took_part(run)[2] == ["site-1", "site-2", "site-3"]
    assert load_file(run.directory.final_model)["steps"].item() == 4
