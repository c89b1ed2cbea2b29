"""Scores as NVFlare means them: what comes with an update is of the model that was received."""

from safetensors.torch import load_file
from training_scripts import of_kind

from flstream.telemetry.events import Evaluated, RunStarted

MODEL = """
import torch


def build():
    return {"w": torch.zeros(4)}
"""

# As most of NVFlare's examples: a scheduler in a variable, and no question which task it is. The
# score of a model is its own first weight, so that a score of another model would show.
SCHEDULED = """
import pathlib
import torch
import flstream.client as flare

weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=1.0)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
flare.init()
while flare.is_running():
    model = flare.receive()
    weight.data = model.params["w"].clone()
    optimizer.zero_grad()
    (-weight.sum()).backward()
    optimizer.step()
    scheduler.step()
    with pathlib.Path("steps.txt").open("a") as steps:
        steps.write(f"{scheduler.last_epoch}")
    metrics = {"accuracy": SIGN * model.params["w"][0].item()}
    flare.send(flare.FLModel(params={"w": weight.data}, metrics=metrics))
"""
RISES = SCHEDULED.replace("SIGN * ", "")
FALLS = SCHEDULED.replace("SIGN", "-1")
# It seems to tell tasks apart, and trains in an evaluation all the same.
DECEIVES = RISES + "\n" + "def unused():\n    return flare.is_evaluate()\n"
VALUES = [0.0, 1.0, 1.5, 1.75]


def scores(run):
    return {each["round"]: each.get("accuracy") for each in run.summary.metrics}


def final(run):
    return load_file(run.directory.final_model)["w"].tolist()


def steps(run, site="site-1"):
    return (run.directory.site(site) / "work" / "steps.txt").read_text()


def test_metrics_of_an_update_score_the_model_that_was_received_until_that_suffices(jobs):
    run = jobs.run(RISES, "rounds=9", 'stop_when="accuracy >= 1.75"', model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    # It stops after the fold that has shown the score.
    assert run.summary.rounds_completed == 4
    assert run.summary.ended_early == "accuracy reached 1.75 >= 1.75 in round 3"
    assert scores(run) == {**dict(enumerate(VALUES)), 4: None}
    assert run.summary.evaluate == "received"
    # A scheduler has stepped once a round, and no model was sent for a score.
    assert steps(run) == "1234"
    assert final(run) == [1.875] * 4
    down = run.summary.transfer.down
    assert down.bytes == 4 * 2 * run.summary.model.bytes
    assert (run.summary.best.round, run.summary.best.value) == (3, 1.75)
    assert load_file(run.directory.best_model)["w"][0] == 1.75
    assert [each.received for each in of_kind(run, Evaluated)] == [True] * 4


def test_the_initial_model_may_be_the_best(jobs):
    run = jobs.run(FALLS, "rounds=9", "patience=2", "checkpoints.keep=1", model=MODEL)
    assert run.summary.rounds_completed == 3
    assert (run.summary.best.round, run.summary.best.value) == (0, 0.0)
    assert load_file(run.directory.best_model)["w"].tolist() == [0.0] * 4


def test_a_script_that_trains_in_an_evaluation_is_begun_again(jobs):
    run = jobs.run(DECEIVES, "rounds=3", "workflow.args.evaluate_every=2", model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert final(run) == [1.75] * 4
    assert scores(run) == {0: 0.0, 1: 1.0, 2: 1.5, 3: None}
    assert steps(run) == "123"
    [warning] = run.summary.warnings
    assert "answered an evaluation with a model, so the run began again at round 0" in warning
    assert "set workflow.args.evaluate = received" in warning
    assert [each.evaluate for each in of_kind(run, RunStarted)] == [["task"], ["received"]]
    # What the first try has left in a site is there still, under another name.
    assert len(list(run.directory.site("site-1").glob("work*"))) == 2


def test_in_cyclic_only_the_model_that_a_round_begins_with_is_scored(jobs):
    run = jobs.run(RISES, "workflow.type=cyclic", "rounds=2", model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    # Each of the two sites adds 1.0, then 0.5.
    assert scores(run) == {0: 0.0, 1: 2.0, 2: None}
    assert run.summary.best.round == 1
