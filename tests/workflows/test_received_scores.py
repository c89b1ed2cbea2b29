"""Scores as NVFlare means them: what comes with an update is of the model that was received."""

import pytest
from safetensors.torch import load_file
from training_scripts import cohorts, of_kind

from flstream.telemetry.events import Evaluated

MODEL = """
import torch


def build():
    return {"w": torch.zeros(4)}
"""

# As most of NVFlare's examples: a scheduler in a variable, and no question which task it is, though
# it names what tells tasks apart. The score of a model is its own first weight, so that a score of
# another model would show.
SCHEDULED = """
import pathlib
import torch
import flstream.client as flare

weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=1.0)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
flare.init()


def evaluate():
    return flare.is_evaluate()


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
# Asks from a round on, at some sites alone, and scores a model by its own first weight, too.
ASKS = """
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    asks = WHEN
    if asks and flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": 10.0 + model.params["w"][0].item()}))
        continue
    metrics = {"accuracy": model.params["w"][0].item()}
    flare.send(flare.FLModel(params={"w": model.params["w"] + 1}, metrics=metrics))
"""


def asks(when):
    return ASKS.replace("WHEN", when)


VALUES = [0.0, 1.0, 1.5, 1.75]


def scores(run):
    return {each["round"]: each.get("accuracy") for each in run.summary.metrics}


def final(run):
    return load_file(run.directory.final_model)["w"].tolist()


def steps(run, site="site-1"):
    return (run.directory.site(site) / "work" / "steps.txt").read_text()


def test_metrics_of_an_update_score_the_model_that_was_received_until_that_suffices(jobs):
    how = ["rounds=9", 'stop_when="accuracy >= 1.75"', "workflow.args.evaluate_every=2"]
    run = jobs.run(RISES, *how, model=MODEL).finished()
    # It stops after the fold that has shown the score.
    assert run.summary.rounds_completed == 4
    assert run.summary.ended_early == "accuracy reached 1.75 >= 1.75 in round 3"
    assert scores(run) == {**dict(enumerate(VALUES)), 4: None}
    assert (run.summary.evaluate, run.summary.warnings) == ("received", [])
    # A scheduler has stepped once a round, and no model was sent for a score.
    assert steps(run) == "1234"
    assert final(run) == [1.875] * 4
    down = run.summary.transfer.down
    assert down.bytes == 4 * 2 * run.summary.model.bytes
    assert (run.summary.best.round, run.summary.best.value) == (3, 1.75)
    assert load_file(run.directory.best_model)["w"][0] == 1.75
    assert [each.received for each in of_kind(run, Evaluated)] == [True] * 4


def test_of_a_sampled_round_the_journal_has_the_scores_of_those_that_were_asked(jobs):
    how = ["rounds=3", "clients.count=5", "clients.per_round=2", "workflow.args.evaluate=received"]
    run = jobs.run(RISES, *how, model=MODEL).finished()
    asked, scored = cohorts(run), of_kind(run, Evaluated)
    assert len(scored) == 3
    assert {len(each) for each in asked} == {2}
    names = [[f"site-{number + 1}" for number in each.scored] for each in scored]
    assert names == [sorted(sites) for sites in asked]
    assert [len(each.sites["accuracy"]) for each in scored] == [2, 2, 2]
    assert list(scored[0].sites["accuracy"]) == [0.0, 0.0]
    tables = [each["sites"] for each in run.summary.metrics if "sites" in each]
    assert [list(table) for table in tables] == names


def test_the_initial_model_may_be_the_best(jobs):
    run = jobs.run(FALLS, "rounds=9", "patience=2", "checkpoints.keep=1", model=MODEL)
    assert run.summary.rounds_completed == 3
    assert (run.summary.best.round, run.summary.best.value) == (0, 0.0)
    assert load_file(run.directory.best_model)["w"].tolist() == [0.0] * 4


def test_code_that_asks_at_first_in_a_later_round_is_told_so_once(jobs):
    run = jobs.run(asks("model.current_round >= 1"), "rounds=4", model=MODEL)
    assert scores(run) == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: None}
    [warning] = run.summary.warnings
    assert "site-1, site-2 asked in round 2, and not in their first tasks" in warning
    assert "set workflow.args.evaluate = task" in warning


MIXED = asks('flare.get_site_name() == "site-1"')


@pytest.mark.parametrize("parallel", ["null", "1"])
def test_where_some_sites_ask_they_alone_score(jobs, parallel):
    run = jobs.run(MIXED, "rounds=2", f"clients.parallel={parallel}", model=MODEL)
    assert scores(run) == {1: 11.0, 2: 12.0}
    assert [list(each["sites"]) for each in run.summary.metrics] == [["site-1"]] * 2
    assert (run.summary.evaluate, run.summary.warnings) == ("task", [])


@pytest.mark.parametrize(("parallel", "place"), [("null", "1"), ("1", "2")])
def test_a_site_that_has_not_trained_is_sent_an_evaluation_also_after_a_resume(
    flows, parallel, place
):
    text = """
    model = run.fold(model, run.train(model, ["site-1"]))
    break_off(f"{number}")
    run.evaluate(model)
    """
    how = ["rounds=3", f"clients.parallel={parallel}"]
    run = flows.broken(text, *how, place=place, script=MIXED, model=MODEL)
    run = flows.resume(run, text, *how, script=MIXED, model=MODEL)
    # The update of the other site is dropped.
    assert final(run) == [3.0] * 4
    # It does not ask, and found so in its first task: it is sent no other.
    assert scores(run) == {1: 6.0, 2: 12.0, 3: 13.0}
    assert run.summary.warnings == []


def test_the_argument_of_the_workflow_forces_either_way(jobs):
    received = jobs.run(MIXED, "rounds=2", "workflow.args.evaluate=received", model=MODEL)
    assert scores(received) == {0: 0.0, 1: 1.0, 2: None}
    task = jobs.run(RISES, "rounds=1", "workflow.args.evaluate=task", model=MODEL)
    assert (scores(task), steps(task)) == ({1: 1.0}, "12")
    [warning] = task.summary.warnings
    assert "answers evaluation tasks with a model too" in warning


LEARNER = """
import flstream.client as flare


class Sites(flare.Learner):
    def train(self, model):
        metrics = {"accuracy": model.params["w"][0].item()}
        return flare.FLModel(params={"w": model.params["w"] + 1}, metrics=metrics)
"""
EVALUATES = (
    LEARNER
    + """
    def evaluate(self, model):
        return flare.FLModel(metrics={"accuracy": 10.0 + model.params["w"][0].item()})
"""
)


@pytest.mark.parametrize(
    ("text", "due"), [(LEARNER, {0: 0.0, 1: 1.0, 2: None}), (EVALUATES, {1: 11.0, 2: 12.0})]
)
def test_a_learner_is_sent_evaluations_if_it_has_the_method(jobs, text, due):
    how = ("train.script=null", "train.learner=client:Sites", "clients.parallel=1")
    assert scores(jobs.run(text, "rounds=2", *how, model=MODEL)) == due


def test_in_cyclic_only_the_model_that_a_round_begins_with_is_scored(jobs):
    run = jobs.run(RISES, "workflow.type=cyclic", "rounds=2", model=MODEL).finished()
    # Each of the two sites adds 1.0, then 0.5.
    assert scores(run) == {0: 0.0, 1: 2.0, 2: None}
    assert run.summary.best.round == 1
