"""What every workflow is promised without a line of code for it. A new one joins by one line."""

import os
import signal
from pathlib import Path

import pytest
from flows import finished
from nightly_cases import first_and_nightly
from training_scripts import LARGE, QUIET, adding, noisy, of_kind, results

from flstream.report.html.run_page import write_report
from flstream.runs.resume import plan_resume
from flstream.telemetry.events import ProcessReady, RoundFinished, SiteLog

OWN = Path(__file__).parents[2] / "benchmarks" / "small_job"
WORKFLOWS = {
    "fedavg": ["workflow.type=fedavg"],
    "sampled": ["workflow.type=fedavg", "clients.per_round=2"],
    "cyclic": ["workflow.type=cyclic", "workflow.args.order=random_without_same_in_a_row"],
    "a file": [f'workflow.type="{OWN / "odd_even.py"}:odd_even"'],
    "two stages": ["workflow=[{ type = fedavg }, { type = cyclic }]"],
}
"""Overrides that name each workflow. In its three rounds, of each stage, four sites take part."""

ROUNDS = ["clients.count=4", "rounds=3"]
SPREAD = {
    "in memory": ["clients.parallel=2"],
    "in files": ["clients.parallel=2", LARGE],
    "in small chunks": ["streaming.tensor_download_chunk_size=48"],
    "in chunks from files": ["clients.parallel=1", LARGE,
                             "streaming.tensor_download_chunk_size=16 KiB"],
}  # fmt: skip
CURVE = [0.5, 0.7, 0.6, 0.6, 0.9, 0.1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """Results of a run of a workflow with a process for each site, for either size of model."""
    found = {}

    def of(name, *size):
        if (name, *size) not in found:
            jobs = jobs_in(tmp_path_factory.mktemp("undisturbed"))
            run = jobs.run(noisy(), *ROUNDS, *WORKFLOWS[name], *size)
            found[name, *size] = results(run)
        return found[name, *size]

    return of


# The workflows that are tried each time; the others where there is time.
BRIEF = {"fedavg", "a file"}
CASES = [
    pytest.param(each, marks=() if each in BRIEF else pytest.mark.nightly) for each in WORKFLOWS
]


@pytest.fixture(params=CASES)
def name(request):
    """Each of the workflows in turn."""
    return request.param


@first_and_nightly("spread", SPREAD.values(), ids=SPREAD)
def test_the_bits_are_the_same_however_the_work_is_spread(jobs, undisturbed, name, spread):
    run = jobs.run(noisy(), *ROUNDS, *WORKFLOWS[name], *spread)
    size = [LARGE] if LARGE in spread else []
    assert results(run) == undisturbed(name, *size)


# A site says that it has trained, and waits to be killed, once.
WAITS = """
mark = f"{folder}/waited"
if number == %d and site in ("site-2", "site-3") and not os.path.exists(mark):
    for each in ("site-2", "site-3"):
        os.makedirs(f"{folder}/../{each}", exist_ok=True)
        open(f"{folder}/../{each}/waited", "w").close()
    flare.log("waits", 1.0)
    threading.Event().wait()
"""


class Killer:
    """Kills the server once a site waits for that."""

    def __init__(self):
        self.has_struck = False
        self._server = None

    def __call__(self, event, sampler):
        if isinstance(event, ProcessReady) and event.process == "server":
            self._server = event.pid
        if isinstance(event, SiteLog) and event.key == "waits" and not self.has_struck:
            self.has_struck = True
            os.kill(self._server, signal.SIGKILL)


@first_and_nightly("how", [["clients.parallel=2", LARGE], []], ids=["shared", "own"])
def test_a_run_that_is_killed_in_mid_round_goes_on_to_the_same_bits(jobs, undisturbed, name, how):
    # Site 2 or 3 is in every cohort, also in one that is drawn.
    script, how = noisy(WAITS % 3), [*ROUNDS, *WORKFLOWS[name], *how]
    killer = Killer()
    run = jobs.run(script, *how, listener=killer)
    assert killer.has_struck
    assert run.summary.status == "failed"
    resumed = jobs.go_on(run, script, *how)
    assert results(resumed) == undisturbed(name, *([LARGE] if LARGE in how else []))


@pytest.fixture
def scored(jobs, name):
    """Runs of a workflow whose models score as the curve has it."""
    script = adding({}).replace("float(number)", f"{CURVE}[number - 1]")
    return lambda *how: finished(jobs.run(script, *ROUNDS, *WORKFLOWS[name], *how))


def test_early_stopping_ends_it_with_a_reason_and_nothing_left_to_do(jobs, scored, name):
    aim = 'stop_when="accuracy >= 0.65"'
    run = scored(aim)
    done, planned = run.summary.rounds_completed, 6 if name == "two stages" else 3
    assert done < planned
    assert "accuracy reached" in run.summary.ended_early
    assert run.directory.final_model.samefile(run.directory.checkpoint(done))
    script = adding({}).replace("float(number)", f"{CURVE}[number - 1]")
    job = jobs.make(script, *ROUNDS, *WORKFLOWS[name], aim)
    assert plan_resume(job, run.directory).is_finished


def test_the_best_model_is_named_and_stays_and_what_need_not_stay_goes(scored, name):
    run = scored("checkpoints.keep=1")
    last = run.summary.rounds_completed
    best = max(range(1, last + 1), key=lambda number: CURVE[number - 1])
    assert (run.summary.best.round, run.summary.best.value) == (best, CURVE[best - 1])
    assert run.directory.best_model.samefile(run.directory.checkpoint(best))
    assert run.directory.final_model.samefile(run.directory.checkpoint(last))
    kept = sorted(path.name for path in run.directory.checkpoints.iterdir())
    assert kept == [f"round-{number:04d}.safetensors" for number in sorted({best, last})]


def test_the_summary_and_the_report_tell_of_every_round(scored, name):
    run = scored()
    summary = run.summary
    rounds = list(range(1, summary.rounds_completed + 1))
    assert len(rounds) == (6 if name == "two stages" else 3)
    assert [each["round"] for each in summary.metrics] == rounds
    assert [each["accuracy"] for each in summary.metrics] == CURVE[: len(rounds)]
    assert [each.round for each in summary.rounds] == rounds
    assert all(each.train > 0 and each.checkpoint > 0 for each in summary.rounds)
    assert summary.transfer.up.bytes > 0
    assert summary.transfer.down.bytes > summary.transfer.up.bytes
    # Whoever is in a round's model has a weight in it, however many models the round has made.
    sites = 2 if name == "sampled" else 4
    assert [len(each.weights) for each in of_kind(run, RoundFinished)] == [sites] * len(rounds)
    page = write_report(run.directory.path).read_text()
    assert "accuracy" in page
    assert "site-4" in page


def test_a_run_can_be_given_more_rounds(jobs, undisturbed, name):
    if name == "two stages":
        pytest.skip("rounds count for each of the stages, so that a longer run is another one")
    run = jobs.run(noisy(), *WORKFLOWS[name], "clients.count=4", "rounds=2")
    assert run.summary.rounds_completed == 2
    assert results(jobs.go_on(run, noisy(), *WORKFLOWS[name], *ROUNDS)) == undisturbed(name)


def test_nothing_is_evaluated_where_the_job_wants_none(jobs, name):
    run = finished(jobs.run(adding({}), *ROUNDS, *_quiet(WORKFLOWS[name])))
    assert run.summary.best is None
    assert all("accuracy" not in each for each in run.summary.metrics)
    assert not run.directory.best_model.exists()


def _quiet(overrides):
    if any("workflow=[" in each for each in overrides):
        quiet = "args { evaluate_every = 0 }"
        return [each.replace(" }", f", {quiet} }}") for each in overrides]
    return [*overrides, QUIET]
