"""What goes wrong ends a job with a sentence, or is left out whole while the others go on."""

import os
import signal

import pytest
from nightly_cases import first_and_nightly
from run_fixtures import MODEL
from safetensors.torch import load_file
from training_scripts import (
    LARGE,
    QUIET,
    adding,
    check_rounds_are_means,
    cohorts,
    of_kind,
    took_part,
)

from flstream.telemetry.events import ProcessReady, SiteFailed, SitePhaseChanged, SiteSuspended

pytestmark = pytest.mark.usefixtures("processes")  # that die, stall, and are stopped
SITES = [f"site-{number}" for number in range(1, 7)]
FOUR = SITES[:4]
PLACES = {
    "in files and sums": ["clients.parallel=2", LARGE],
    "a process each": [],
    "in memory": ["clients.parallel=2"],
}
NAN = "params['w'][len(params['w']) // 2] = float('nan')"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
STALL = "threading.Event().wait()"
OOPS = "raise KeyError('oops')"


def reasons(run):
    return {(event.round, event.site): event.reason for event in of_kind(run, SiteFailed)}


# One misdeed a round, each of another site, and a round without one in the end.
MISDEEDS = {
    ("site-2", 1): (KILL, "was killed by SIGKILL"),
    ("site-3", 2): (OOPS, "raised KeyError: 'oops'"),
    ("site-1", 3): (NAN, "the update of site-1 is not finite: tensor 'w' at ["),
    ("site-4", 4): ("params['b'] = params['b'].T", "tensor 'b' has shape [5, 3] instead of [3, 5]"),
    ("site-2", 5): (STALL, "did not answer its train task in the time it was given"),
    ("site-6", 6): ("params.pop('w')", "tensor 'w' is missing"),
}


@first_and_nightly("place", PLACES.values(), ids=PLACES)
def test_the_model_is_exactly_the_mean_of_those_that_did_not_fail(jobs, place):
    script = adding({when: deed for when, (deed, _) in MISDEEDS.items()})
    # Sites that share a task share its time, so that two of them have twice as much.
    how = ["clients.count=6", "clients.min_updates=5", "clients.round_timeout=3 s", "rounds=7"]
    run = jobs.run(script, *place, *how, QUIET).finished()
    # Each of them, dead or not, takes part again in the next round.
    guilty = {number: site for site, number in MISDEEDS}
    assert took_part(run) == {
        number: [site for site in SITES if site != guilty.get(number)] for number in range(1, 8)
    }
    check_rounds_are_means(run)
    found = reasons(run)
    assert len(found) == len(MISDEEDS)
    for (site, number), (_, words) in MISDEEDS.items():
        assert words in found[number, site]


# Its process is killed when the middle of its update is to be sent.
KILLED_HALFWAY = """
class Killed:
    def __init__(self, body):
        self.layout, self.body = body.layout, body

    def read(self, start, stop, into):
        if stop > self.layout.nbytes // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self.body.read(start, stop, into)

service = flare.session.current().turns.worker._service
offer = service.offer
service.offer = lambda source, receivers, **how: offer(Killed(source), receivers, **how)
"""


def test_a_client_killed_in_the_middle_of_its_upload_leaves_no_trace(jobs):
    script = adding({("site-2", 1): KILLED_HALFWAY})
    how = ["clients.count=4", "clients.min_updates=3", QUIET]
    large = ["model.args.elements=2000000", "streaming.tensor_download_chunk_size=64 KiB"]
    run = jobs.run(script, *how, *large).finished()
    assert took_part(run) == {1: ["site-1", "site-3", "site-4"], 2: FOUR}
    check_rounds_are_means(run)
    (failure,) = run.summary.failures
    assert (failure.reason, failure.signal) == ("site-2 was killed by SIGKILL", "SIGKILL")


def test_below_min_updates_the_job_fails_with_each_site_and_its_reason(jobs):
    deeds = {("site-2", 2): KILL, ("site-3", 2): NAN, ("site-4", 1): OOPS}
    run = jobs.run(adding(deeds), "clients.count=4", "clients.min_updates=3", QUIET)
    error = run.summary.error
    assert run.summary.status == "failed"
    assert "2 of 4 sites are left to train round 2, and 3 have to" in error
    assert "site-2: " in error
    assert "site-3: the update of site-3 is not finite: tensor 'w'" in error
    assert "site-4: " not in error
    kept = sorted(path.name for path in run.directory.checkpoints.iterdir())
    first = ["round-0001.safetensors", "round-0001.step-00.safetensors"]
    assert kept == ["round-0000.safetensors", *first]
    assert not run.directory.final_model.exists()


def test_a_round_is_closed_early_once_enough_are_in(jobs):
    script = adding({("site-4", 1): STALL})
    # A second, and in the second round no one waits for it: a busy machine starts a new process
    # for the fourth site and trains there well within that.
    enough = ["clients.min_updates=2", "clients.wait_after_min=1 s", "clients.count=4"]
    run = jobs.run(script, *enough, QUIET).finished()
    first, second = took_part(run).values()
    assert "site-4" not in first
    assert len(first) >= 2
    assert "site-4" in second
    check_rounds_are_means(run)
    assert "clients.wait_after_min" in reasons(run)[1, "site-4"]


@first_and_nightly(("after", "asked"), [(2, 4), (0, 6)])
def test_a_site_that_fails_twice_in_a_row_is_asked_no_more_unless_the_job_says_so(
    jobs, after, asked
):
    deeds = {("site-3", number): OOPS for number in (1, 3, 4, 5)}
    # One that fails to evaluate does not end the run, and is asked all the same.
    fails = "if (site, number) == ('site-2', 2): raise KeyError('score')"
    script = adding(deeds).replace(
        "if flare.is_evaluate():", f"if flare.is_evaluate():\n        {fails}"
    )
    how = ["clients.min_updates=3", "rounds=6", f"clients.suspend_after={after}"]
    run = jobs.run(script, "clients.count=4", *how).finished()
    assert "KeyError: 'score'" in reasons(run)[2, "site-2"]
    others = [site for site in FOUR if site != "site-3"]
    assert cohorts(run) == [FOUR] * asked + [others] * (6 - asked)
    benched = [(each.round, each.site, each.failures) for each in of_kind(run, SiteSuspended)]
    assert benched == ([(4, "site-3", 2)] if after else [])
    check_rounds_are_means(run)


WAITS = "import threading\ndef build():\n    threading.Event().wait()"


@pytest.mark.parametrize(
    ("script", "model", "reason"),
    [
        ("raise KeyError('first line')", WAITS, "KeyError: 'first line'"),
        ("print('I do something else')", MODEL, "its script ended before the run did"),
    ],
)
def test_a_script_that_does_not_come_to_its_loop_is_quoted_at_once(jobs, script, model, reason):
    run = jobs.run(script, model=model)
    assert run.summary.status == "failed"
    assert reason in run.summary.error


# One loops over the rounds in place of is_running(), and the other fails after its last task.
ENDS = """
import flstream.client as flare

flare.init()
if flare.get_site_name() == "site-1":
    rounds = range(4)
else:
    rounds = iter(flare.is_running, False)
for _ in rounds:
    model = flare.receive()
    flare.log("loss", float("nan"))
    model.params["b"] += 1
    metrics = {"accuracy": float("inf")}
    flare.send(flare.FLModel(params=model.params, metrics=metrics))
if flare.get_site_name() == "site-2":
    raise RuntimeError("while tidying up")
"""


def test_how_a_script_ends_and_what_it_prints_or_scores_does_not_fail_a_run(jobs, capfd):
    model = "import torch\ndef build():\n    print('hello')\n    return {'b': torch.ones(3)}"
    run = jobs.run(ENDS, "workflow.args.evaluate=task", model=model).finished()
    assert "while tidying up" in run.directory.site_log("site-2").read_text()
    # Metrics that are not numbers never make the best round.
    assert run.summary.best is None
    # A script that trains on evaluation tasks is warned of, once.
    [warning] = run.summary.warnings
    assert "is_evaluate()" in warning
    assert run.directory.log("model-builder").read_text() == "hello\n"
    assert capfd.readouterr() == ("", "")


def test_a_site_whose_code_closes_all_descriptors_is_lost_at_once(jobs):
    script = adding({("site-2", 2): "os.closerange(3, 256)"})
    how = ["clients.round_timeout=100 s", "clients.min_updates=1", "rounds=2", QUIET]
    run = jobs.run(script, *how).finished()
    [failure] = run.summary.failures
    assert (failure.site, failure.exit_status) == ("site-2", 3)


@pytest.mark.nightly
def test_a_site_whose_forked_child_lives_on_is_seen_to_die(jobs_of_their_own):
    forks = f"if os.fork() == 0:\n    threading.Event().wait(20)\n    os._exit(0)\n{KILL}"
    script = adding({("site-2", 2): forks})
    run = jobs_of_their_own.run(script, "clients.round_timeout=15 s", QUIET, "network.latency=5 ms")
    assert run.summary.status == "failed"
    assert "site-2 was killed by SIGKILL" in run.summary.error
    assert "did not" not in run.summary.error


@pytest.mark.nightly
def test_modules_in_the_working_directory_are_not_run_in_place_of_pythons(
    jobs_of_their_own, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("random", "queue", "secrets"):
        (elsewhere / f"{name}.py").write_text("raise RuntimeError('hijacked')")
    monkeypatch.chdir(elsewhere)
    jobs_of_their_own.run(adding({})).finished()


def test_processes_that_cannot_be_started_make_a_failed_run_with_a_summary(jobs, monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("flstream.engines.processes.ProcessHost.start", refuse)
    run = jobs.run(adding({}))
    assert run.summary.status == "failed"
    assert "Too many open files" in run.summary.error
    assert run.directory.summary.exists()


def test_a_model_that_cannot_be_built_ends_the_job(jobs):
    run = jobs.run(adding({}), model="import os\ndef build():\n    os.kill(os.getpid(), 9)")
    assert run.summary.status == "failed"
    assert "builds the initial model was killed by SIGKILL" in run.summary.error
    assert "too little memory" in run.summary.error
    assert run.summary.rounds_completed == 0


class InRoundTwo:
    """Sends a signal to the launcher or the server once a site trains in round 2."""

    def __init__(self, victim, number):
        self._victim, self._number = victim, number
        self._pids = {"launcher": os.getpid()}

    def __call__(self, event, sampler):
        if isinstance(event, ProcessReady):
            self._pids[event.process] = event.pid
        if isinstance(event, SitePhaseChanged) and (event.round, event.state) == (2, "training"):
            os.kill(self._pids[self._victim], self._number)


@pytest.mark.parametrize("victim", ["launcher", "server"])
def test_a_run_that_is_stopped_or_loses_its_server_keeps_the_last_round(jobs, victim):
    number = signal.SIGTERM if victim == "launcher" else signal.SIGKILL
    before = signal.getsignal(signal.SIGTERM)
    script = adding({("site-2", 2): STALL})
    run = jobs.run(script, QUIET, listener=InRoundTwo(victim, number))
    assert signal.getsignal(signal.SIGTERM) is before
    if victim == "launcher":
        assert run.summary.status == "stopped"
    else:
        assert run.summary.status == "failed"
        assert "server was killed by SIGKILL" in run.summary.error
    assert run.summary.rounds_completed == 1
    assert load_file(run.directory.checkpoint(1))
    assert not list(run.directory.path.rglob("*.tmp"))
