"""A run that was cut off at any instant ends in the bits of one that was not."""

import json
import os
import signal
import subprocess
import sys

import pytest
from nightly_cases import first_and_nightly
from training_scripts import LARGE, QUIET, adding, cohorts, noisy, of_kind, results

from flstream.errors import UsageError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.runs.resume import plan_resume
from flstream.telemetry.events import (
    ProcessReady,
    RoundFinished,
    SiteLog,
    SitePhaseChanged,
    SiteUpdate,
)

SIX = ["clients.count=6", "rounds=3"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """What comes of six sites in three rounds that nobody disturbs, for either size of model."""
    jobs = jobs_in(tmp_path_factory.mktemp("undisturbed"))
    return {
        "tiny": results(jobs.run(noisy(), *SIX)),
        "large": results(jobs.run(noisy(), *SIX, LARGE)),
    }


class Killer:
    """Kills a process, once, when it is told of something in a round."""

    def __init__(self, victim, kind, number, site=None, state=None):
        self._victim, self._kind, self._number = victim, kind, number
        self._site, self._state = site, state
        self._pids = {}
        self.has_struck = False

    def __call__(self, event, sampler):
        if isinstance(event, ProcessReady):
            self._pids[event.process] = event.pid
        if self.has_struck or not isinstance(event, self._kind) or event.round != self._number:
            return
        if self._site is not None and event.site != self._site:
            return
        if self._state is not None and event.state != self._state:
            return
        self.has_struck = True
        if self._victim is None:
            signal.raise_signal(signal.SIGINT)
        else:
            os.kill(self._pids[self._victim], signal.SIGKILL)


def trained(run, site):
    """The rounds for which a site has trained, in order."""
    return [int(line) for line in (run.directory.site(site) / "trained.txt").read_text().split()]


def cut_off(jobs, killer, *how, script=None):
    """A run that does not come to its end."""
    run = jobs.run(script or noisy(), *how, listener=killer)
    assert killer.has_struck
    assert run.summary.status == ("stopped" if killer._victim is None else "failed")
    assert not run.directory.final_model.exists()
    return run


# The first time that it has trained for round 2, a site says so and waits to be killed.
WAITS = """
mark = f"{folder}/waited"
if (site, number) == ("site-%d", 2) and not os.path.exists(mark):
    open(mark, "w").close()
    flare.log("waits", 1.0)
    threading.Event().wait()
"""


@pytest.mark.nightly
@first_and_nightly("victim", [None, "server", "site-3"], ids=["ctrl-c", "server", "client"])
def test_a_process_each_and_one_is_lost_in_mid_round(jobs, undisturbed, victim):
    killer = Killer(victim, SiteLog, 2, "site-3")
    script = noisy(WAITS % 3)
    run = cut_off(jobs, killer, *SIX, script=script)
    assert run.summary.rounds_completed == 1
    assert results(jobs.go_on(run, script, *SIX)) == undisturbed["tiny"]


@pytest.mark.nightly
def test_sites_that_share_a_task_have_the_state_of_the_last_round(jobs, undisturbed):
    # Others of the task have trained by then, and have left their new state behind.
    script, shared = noisy(WAITS % 3), [*SIX, "clients.parallel=2"]
    run = cut_off(jobs, Killer("server", SiteLog, 2, "site-3"), *shared, script=script)
    resumed = jobs.go_on(run, script, *shared)
    assert results(resumed) == undisturbed["tiny"]
    assert trained(resumed, "site-1") == [1, 2, 2, 3]


def test_a_worker_that_is_lost_is_replaced_and_its_sites_begin_anew(jobs, undisturbed):
    script, killer = noisy(WAITS % 3), Killer("worker-1", SiteLog, 2, "site-3")
    run = jobs.run(script, *SIX, "clients.parallel=2", listener=killer)
    assert killer.has_struck
    assert results(run) == undisturbed["tiny"]


# One worker: of six updates, four are in a sum and one waits when the last site trains.
@first_and_nightly("last", [3, 6], ids=["in files", "in a sum"])
def test_updates_that_are_whole_are_not_trained_again(jobs, undisturbed, last):
    script, shared = noisy(WAITS % last), [*SIX, LARGE, "clients.parallel=1"]
    killer = Killer("server", SiteLog, 2, f"site-{last}")
    run = cut_off(jobs, killer, *shared, script=script)
    waiting = {path.name for path in run.directory.updates(4).glob("*.safetensors")}
    assert ("sum.safetensors" in waiting) == (last == 6)
    resumed = jobs.go_on(run, script, *shared)
    assert results(resumed) == undisturbed["large"]
    for number in range(1, 7):
        due = [1, 2, 2, 3] if number == last else [1, 2, 3]
        assert trained(resumed, f"site-{number}") == due
    assert not (run.directory.path / "updates").exists()


def test_a_damaged_update_is_trained_again(jobs, undisturbed):
    script = noisy(WAITS % 3)
    shared = [*SIX, LARGE, "clients.parallel=1"]
    killer = Killer("server", SiteLog, 2, "site-3")
    run = cut_off(jobs, killer, *shared, script=script)
    update = run.directory.updates(4) / "site-1.safetensors"
    data = bytearray(update.read_bytes())
    data[-100] ^= 1
    update.write_bytes(data)
    resumed = jobs.go_on(run, script, *shared)
    assert results(resumed) == undisturbed["large"]
    assert trained(resumed, "site-1") == [1, 2, 2, 3]
    assert trained(resumed, "site-2") == [1, 2, 3]


KILLS_ALL = """
mark = f"{folder}/killed"
if (site, number) == ("site-3", 2) and not os.path.exists(mark):
    import psutil

    open(mark, "w").close()
    launcher = psutil.Process().parent().parent()
    launcher.kill()
    os.killpg(0, signal.SIGKILL)
"""


@first_and_nightly("how", [[], ["clients.parallel=2", LARGE]], ids=["own", "shared"])
def test_everything_is_killed_at_once(jobs, undisturbed, how):
    script = noisy(KILLS_ALL)
    job = jobs.make(script, *SIX, *how)
    run = jobs.folder / "killed"
    words = [word for each in [*SIX, *how] for word in ("--set", each)]
    line = [sys.executable, "-m", "flstream", "simulate", job.folder, "--run-dir", run, *words]
    done = subprocess.run([*line, "--quiet"], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL
    resumed = jobs.go_on(run, script, *SIX, *how)
    assert results(resumed) == undisturbed["large" if LARGE in how else "tiny"]


def stored(run):
    """The files of the models that are there."""
    return sorted(path.name for path in run.directory.checkpoints.iterdir())


def test_a_finished_run_goes_on_if_there_are_more_rounds_now(jobs, undisturbed):
    run = jobs.run(noisy(), "clients.count=6", "rounds=2")
    assert results(jobs.go_on(run, noisy(), *SIX)) == undisturbed["tiny"]


@pytest.mark.nightly
def test_an_evaluation_out_of_turn_is_void_once_there_are_more_rounds(jobs):
    # The third round is evaluated only where it is the last, and would then be the best.
    seldom = ["clients.count=2", "workflow.args.evaluate_every=2", "checkpoints.keep=1"]
    script = adding({}).replace("float(number)", "[0.1, 0.9, 0.95, 0.5, 0.6][number - 1]")
    expected = jobs.run(script, *seldom, "rounds=5")
    run = jobs.run(script, *seldom, "rounds=3")
    assert [("accuracy" in each) for each in run.summary.metrics] == [False, True, True]
    assert run.summary.best.round == 3
    # The best of those that any longer job has stays with the last.
    assert stored(run) == [f"round-{number:04d}.safetensors" for number in (2, 3)]
    resumed = jobs.go_on(run, script, *seldom, "rounds=5")
    assert results(resumed) == results(expected)
    assert resumed.summary.best.round == 2
    assert stored(resumed) == stored(expected)
    bytes_down = [each.summary.transfer.down.bytes for each in (resumed, expected)]
    assert bytes_down[0] == bytes_down[1]


def test_a_run_keeps_fewer_checkpoints_from_when_it_is_told_to(jobs):
    two = ["clients.count=2", QUIET]
    run = jobs.run(adding({}), *two, "rounds=3")
    assert len(stored(run)) == 4
    resumed = jobs.go_on(run, adding({}), *two, "rounds=4", "checkpoints.keep=2")
    assert resumed.summary.status == "finished", resumed.summary.error
    assert stored(resumed) == [f"round-{number:04d}.safetensors" for number in (3, 4)]


def test_another_job_is_refused_and_leaves_the_run_as_it_is(jobs):
    run = jobs.run(noisy(), QUIET, "rounds=1")
    before = {path: path.read_bytes() for path in run.directory.path.rglob("*.*") if path.is_file()}
    with pytest.raises(UsageError, match="seed is 7 there and 8 here"):
        jobs.go_on(run, noisy(), QUIET, "rounds=2", "seed=8")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.nightly
def test_an_evaluation_that_is_due_is_made_up_for(jobs, undisturbed):
    # The server is lost between a round's model and the end of its evaluation.
    killer = Killer("server", SitePhaseChanged, 2, state="evaluating")
    run = cut_off(jobs, killer, *SIX)
    # A round ends when the next begins, and its evaluation belongs to it.
    assert run.summary.rounds_completed == 1
    assert results(jobs.go_on(run, noisy(), *SIX)) == undisturbed["tiny"]


def test_a_server_optimizer_goes_on_with_its_state_and_the_checkpoints_that_are_kept(jobs):
    adam = ["clients.count=3", "rounds=4", "server_optimizer.type=fedadam", "checkpoints.keep=1"]
    expected = jobs.run(noisy(), *adam)
    killer = Killer("server", SitePhaseChanged, 3, "site-2", "training")
    run = cut_off(jobs, killer, *adam)
    resumed = jobs.go_on(run, noisy(), *adam)
    assert results(resumed) == results(expected)
    assert stored(resumed) == stored(expected)
    # The last, and the best.
    numbers = {int(name.split(".")[0].removeprefix("round-")) for name in stored(resumed)}
    assert numbers == {4, resumed.summary.best.round}
    # The journal knows what the optimizer remembers, too.
    for event in of_kind(resumed, RoundFinished):
        if event.round in numbers:
            state = FileSource(resumed.directory.optimizer_state(event.round))
            assert body_digest(state) == event.optimizer_state


@pytest.mark.nightly
def test_a_damaged_optimizer_state_is_noticed_and_costs_a_round_and_no_bit(jobs):
    adam = ["clients.count=2", "server_optimizer.type=fedadam", QUIET]
    expected = jobs.run(noisy(), *adam, "rounds=3")
    run = jobs.run(noisy(), *adam, "rounds=2")
    path = run.directory.optimizer_state(2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    resumed = jobs.go_on(run, noisy(), *adam, "rounds=3")
    assert results(resumed) == results(expected)
    [warning] = resumed.summary.warnings
    assert "went on from round 1 instead of 2" in warning
    assert "round-0002.optimizer.safetensors has the digest" in warning


# The accuracy of the model of each round.
CURVE = [0.5, 0.7, 0.6, 0.6, 0.9]
SCORES = adding({}).replace("float(number)", f"{CURVE}[number - 1]")


def test_a_job_that_has_reached_its_aim_ends_early_and_has_nothing_left_to_do(jobs):
    aim = ['stop_when="accuracy >= 0.65"', "rounds=5"]
    run = jobs.run(SCORES, *aim)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.rounds_completed == 2
    assert run.summary.best.round == 2
    assert "accuracy reached 0.7" in run.summary.ended_early
    assert run.directory.final_model.samefile(run.directory.checkpoint(2))
    assert plan_resume(jobs.make(SCORES, *aim), run.directory).is_finished


@pytest.mark.nightly
def test_patience_counts_on_over_an_interruption(jobs):
    patient = ["patience=2", "rounds=5"]
    killer = Killer("server", SitePhaseChanged, 3, state="evaluating")
    run = cut_off(jobs, killer, *patient, script=SCORES)
    resumed = jobs.go_on(run, SCORES, *patient)
    assert resumed.summary.status == "finished", resumed.summary.error
    assert resumed.summary.rounds_completed == 4
    assert "has not improved on 0.7 of round 2 for 2 evaluations" in resumed.summary.ended_early
    assert resumed.summary.best.round == 2


@pytest.mark.nightly
@first_and_nightly("quiet", [[], [QUIET]], ids=["evaluated", "not evaluated"])
def test_who_was_benched_is_known_after_an_interruption(jobs, quiet):
    deeds = {("site-3", each): "raise KeyError('oops')" for each in (2, 3)}
    four = ["clients.count=4", "clients.min_updates=3", "rounds=5", *quiet]
    expected = jobs.run(adding(deeds), *four)
    killer = Killer("server", RoundFinished, 3)
    run = jobs.run(adding(deeds), *four, listener=killer)
    assert killer.has_struck
    assert run.summary.status == "failed"
    resumed = jobs.go_on(run, adding(deeds), *four)
    assert results(resumed) == results(expected)
    assert cohorts(resumed)[-2:] == cohorts(expected)[-2:]
    assert cohorts(resumed)[-1] == ["site-1", "site-2", "site-4"]
    assert resumed.summary.benched == expected.summary.benched == ["site-3"]


@pytest.mark.nightly
def test_a_run_that_is_cut_off_again_and_again_is_still_the_same(jobs, undisturbed):
    shared = [*SIX, LARGE, "clients.parallel=2"]
    run = cut_off(jobs, Killer("server", SiteUpdate, 1), *shared)
    for number in (1, 3):
        killer = Killer("server", SiteUpdate, number)
        run = jobs.go_on(run, noisy(), *shared, listener=killer)
        assert killer.has_struck
        assert run.summary.status == "failed"
    assert results(jobs.go_on(run, noisy(), *shared)) == undisturbed["large"]
    assert json.loads(run.directory.summary.read_text())["status"] == "finished"


@pytest.mark.nightly
def test_a_training_that_was_asked_first_and_done_last_leaves_the_state_that_counts(jobs):
    (jobs.folder / "late.py").write_text(
        "def late(run):\n"
        "    model = run.initial_model()\n"
        "    for _ in run.rounds():\n"
        "        late = run.train(model, ['site-1'])\n"
        "        early = run.train(model, ['site-1', 'site-2'])\n"
        "        run.fold(model, early)\n"
        "        model = run.fold(model, late)\n"
        "    return model\n"
    )
    settings = ["clients.count=2", QUIET, 'workflow.type="late.py:late"']
    expected = jobs.run(noisy(), *settings, "rounds=3")
    run = jobs.run(noisy(), *settings, "rounds=2")
    assert results(jobs.go_on(run, noisy(), *settings, "rounds=3")) == results(expected)
