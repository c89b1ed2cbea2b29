"""Central evaluation: the evaluator's scores decide, and sites' scores stand beside them."""

import pytest
from training_scripts import QUIET, adding, of_kind, plain

from flstream.job import JobError
from flstream.telemetry.events import EVALUATOR, ProcessReady, SiteFailed

AT = ("evaluate.at=server", "evaluate.script=score.py")

# Scores are the least in round 2, which no site would say, and the loss needs the model.
SCORES = """
import argparse
import torch
import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--best", type=int)
best = parser.parse_args().best
flare.init()
info = flare.system_info()
assert (flare.get_site_name(), info["clients"]) == ("evaluator", 2)
while flare.is_running():
    model = flare.receive()
    number = model.current_round + 1
    assert flare.is_evaluate() and torch.rand(()) != 2
    metrics = {"accuracy": 1.0 / (1 + abs(best - number)), "mean": model.params["w"].mean().item()}
    flare.send(flare.FLModel(metrics=metrics))
"""
# A site adds its number, and scores each model by its round.
SITES = adding({}, accuracy="float(number)")


@pytest.fixture
def central(jobs):
    """Run the job whose rounds end with the models that ``score.py`` scores best in round 2."""

    def run(*overrides, script=SITES, scores=SCORES, **options):
        (jobs.folder / "score.py").write_text(scores)
        return jobs.run(script, "rounds=3", *AT, "evaluate.args.best=2", *overrides, **options)

    return run


def test_the_evaluator_decides_the_best_round_and_the_end_and_changes_no_bits(jobs, central):
    at_sites = jobs.run(SITES, "rounds=3")
    summary, directory = central().finished()
    assert summary.model.digest == at_sites.summary.model.digest
    assert [table["accuracy"] for table in summary.metrics] == [0.5, 1.0, 0.5]
    assert all("sites" not in table for table in summary.metrics)
    assert (summary.evaluate, summary.best.round, at_sites.summary.best.round) == ("server", 2, 3)
    assert directory.best_model.samefile(directory.checkpoint(2))
    stopped = central("stop_when=accuracy >= 0.9").summary
    assert (stopped.rounds_completed, stopped.ended_early) == (
        2,
        "accuracy reached 1 >= 0.9 in round 2",
    )
    assert central("patience=1").summary.rounds_completed == 3


def test_sites_that_score_too_stand_beside_the_evaluator(central):
    asked = central("workflow.args.evaluate=task").summary
    assert [table["accuracy"] for table in asked.metrics] == [0.5, 1.0, 0.5]
    assert [table["site_metrics"] for table in asked.metrics] == [
        {"accuracy": float(number)} for number in (1, 2, 3)
    ]
    assert asked.metrics[0]["sites"]["site-2"] == {"accuracy": 1.0}
    assert (asked.best.round, asked.evaluate) == (2, "server")


def test_metrics_that_come_with_updates_stand_beside_the_evaluator(central, jobs):
    script = plain("metrics = {'accuracy': 7.0 + model.current_round}")
    script = script.replace("if flare.is_evaluate():", "if False:")
    summary, _directory = central(script=script)
    assert [table.get("accuracy") for table in summary.metrics] == [None, 0.5, 1.0, 0.5]
    means = [table.get("site_metrics") for table in summary.metrics]
    assert means == [{"accuracy": 7.0}, {"accuracy": 8.0}, {"accuracy": 9.0}, None]
    assert (summary.best.round, summary.best.value) == (2, 1.0)


def test_a_learner_scores_every_second_model_and_the_last(jobs, central):
    scores = """
class Scorer:
    def __init__(self, best, sites):
        self.best = best + 10 * sites

    def evaluate(self, model):
        model.metrics = {"accuracy": float(self.best)}
        model.params = None
        return model
"""
    learner = ("evaluate.script=null", "evaluate.learner=score:Scorer")
    summary = central(*learner, "workflow.args.evaluate_every=2", scores=scores).finished().summary
    assert [table.get("accuracy") for table in summary.metrics] == [None, 22.0, 22.0]


@pytest.mark.parametrize("workflow", ["cyclic", "swarm", "scaffold", "evaluate"])
def test_other_workflows_are_scored_centrally(central, workflow):
    summary = central(f"workflow.type={workflow}").finished().summary
    assert (summary.metrics[-1]["accuracy"], summary.evaluate) == (
        1 / 3 if workflow == "evaluate" else 0.5,
        "server",
    )


FAILS = {
    "raise KeyError('oops')": "score.py, line 14 raised KeyError: 'oops'",
    "flare.send(flare.FLModel(metrics={}))": "it has answered without metrics",
    "raise SystemExit(4)": "score.py exited with status 4",
}


@pytest.mark.parametrize("mistake", FAILS)
def test_an_evaluator_that_fails_ends_the_run_with_its_reason(central, mistake):
    scores = SCORES.replace("    number =", f"    {mistake}\n    number =")
    summary = central(scores=scores).summary
    assert summary.status == "failed"
    assert "the model of round 1 has no score, since the evaluator failed: " in summary.error
    assert FAILS[mistake] in summary.error
    assert ([failure.site for failure in summary.failures], summary.evaluate) == (
        [EVALUATOR],
        "server",
    )
    assert "sites/evaluator/log.txt" in summary.error


def test_an_evaluator_that_does_not_start_ends_the_run_before_a_round(central):
    summary, _directory = central(scores="import nowhere\n")
    assert (summary.status, summary.rounds_completed) == ("failed", 0)
    assert "no model can be scored, since the evaluator failed: " in summary.error
    assert "nowhere" in summary.error


def test_the_evaluator_is_a_process_of_its_own(central, processes):
    run = central().finished()
    summary = run.summary
    [ready] = [event for event in of_kind(run, ProcessReady) if event.process == EVALUATOR]
    assert summary.memory.evaluator.peak_rss >= ready.idle_rss > 0
    assert set(summary.memory.clients) == {"site-1", "site-2"}


def test_an_evaluator_that_is_killed_ends_the_run(central, processes):
    scores = SCORES.replace("    number =", "    import os; os.kill(os.getpid(), 9)\n    number =")
    run = central(scores=scores)
    summary = run.summary
    assert (summary.status, summary.rounds_completed) == ("failed", 0)
    assert "the evaluator failed: evaluator was killed by SIGKILL" in summary.error
    assert [event.site for event in of_kind(run, SiteFailed)] == [EVALUATOR]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluate.at=server"], "evaluate.script"),
        ([*AT, "evaluate.learner=score:Scorer"], "the only one of evaluate.script and"),
        (["evaluate.at=server", "evaluate.script=none.py"], "none.py"),
        ([*AT, "clients.names=[evaluator, b]"], "evaluator is the name of a process"),
        ([*AT, QUIET, "patience=2"], "as no round is evaluated"),
    ],
)
def test_mistakes_of_the_section_are_named(jobs, overrides, message):
    (jobs.folder / "score.py").write_text(f"{SCORES}\nScorer = object\n")
    with pytest.raises(JobError, match=message):
        jobs.make(SITES, *overrides)
