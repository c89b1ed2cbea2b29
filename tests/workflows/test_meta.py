"""Values that travel beside the tensors, from a workflow to its sites and back."""

import pytest
from flows import records, shape
from nightly_cases import first_and_nightly
from training_scripts import QUIET, results

# Sends back what it was sent, with its name.
ECHO = """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": 0.5}, meta={"not": "seen"}))
        continue
    site = flare.get_site_name()
    sent = {key: value for key, value in model.meta.items() if key != "task"}
    meta = {"echo": sent, "from": site, "num_examples": int(site[-1]), "round": (1, 2.5)}
    optimizer = None if model.optimizer_params is None else {**model.optimizer_params, "by": site}
    flare.send(flare.FLModel(params=model.params, meta=meta, optimizer_params=optimizer))
"""
FLOW = """
def flow(run):
    model, step = run.initial_model(), 0
    for number in run.rounds():
        updates = run.train(
            model,
            run.sites,
            meta={"step": step, "control": [1.5, None, ("a", b"b")], "nan": float("nan")},
            optimizer_params={"lr": 0.1 / number},
        )
        for each in updates:
            see(each.site, each.weight, each.meta, each.optimizer_params)
        step = sum(each.meta["echo"]["step"] + 1 for each in updates)
        plain = run.train(model, ["site-2"])
        see([(each.meta["echo"], each.optimizer_params) for each in plain])
        model = run.fold(model, updates)
        run.evaluate(model)
        die_here(f"{number}")
    return model
"""
SPREAD = {"own": [], "shared": ["clients.parallel=1"]}


@pytest.mark.parametrize("spread", SPREAD.values(), ids=SPREAD)
def test_values_reach_the_other_side_both_ways_and_are_the_same_on_replay(flows, spread):
    expected = flows.finish(FLOW, *spread, script=ECHO)
    due = flows.seen()
    sent = "'step': 0, 'control': [1.5, None, ('a', b'b')], 'nan': nan, 'site_name': 'site-1'"
    assert due[0] == (
        f"'site-1', 1.0, {{'echo': {{{sent}}}, 'from': 'site-1', 'num_examples': 1, "
        "'round': (1, 2.5)}, {'lr': 0.1, 'by': 'site-1'}"
    )
    assert due[2] == "[({'site_name': 'site-2'}, None)]"
    # What the workflow makes of one round's values is what it sends in the next.
    assert "'step': 2," in due[3]
    assert "{'lr': 0.05, 'by': 'site-1'}" in due[3]
    run = flows.killed(FLOW, *spread, place="1", script=ECHO)
    assert flows.seen() == due[:3]
    resumed = flows.resume(run, FLOW, *spread, script=ECHO)
    assert flows.seen() == due
    assert results(resumed) == results(expected)


def test_values_that_are_sent_are_part_of_what_was_asked(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            for value in (1, 2, 1):
                len(run.train(model, run.sites, meta={"value": value}))
            len(run.train(model, run.sites, optimizer_params={"value": 1}))
            model = run.fold(model, run.train(model, run.sites))
        return model
    """
    run = flows.finish(text, QUIET, "rounds=1", script=ECHO)
    assert shape(records(run)) == [*(f"{each} train" for each in range(1, 6)), "6 fold"]
    digests = [each.arguments for each in records(run)[:5]]
    assert digests[0] == digests[2]
    assert len(set(digests)) == 4


def test_a_learner_has_them_too(flows):
    script = """
    import flstream.client as flare

    class Sites(flare.Learner):
        def train(self, model):
            meta = {"echo": model.meta["value"], "num_examples": 2}
            optimizer = {"twice": 2 * model.optimizer_params["value"]}
            return flare.FLModel(params=model.params, meta=meta, optimizer_params=optimizer)
    """
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            values = {"value": number + 0.5}
            updates = run.train(model, run.sites, meta=values, optimizer_params=values)
            see([(each.meta["echo"], each.optimizer_params) for each in updates])
            model = run.fold(model, updates)
        return model
    """
    learner = ["train.script=null", "train.learner=client:Sites", QUIET, "rounds=1"]
    flows.finish(text, *learner, "clients.parallel=1", script=script)
    assert flows.seen() == ["[(1.5, {'twice': 3.0}), (1.5, {'twice': 3.0})]"]


REFUSED = {
    "meta={'a': {'b': [0, torch.ones(2)]}}": '["meta"]["a"]["b"][1] is a tensor',
    "optimizer_params={'state': {0: {'exp_avg': torch.ones(2)}}}": (
        '["optimizer_params"]["state"][0]["exp_avg"] is a tensor'
    ),
    "meta={'f': object()}": "meta cannot be sent",
    "meta={'large': bytes(2 << 20)}": "and 1048576 is most; send less, or put it into params",
}


@first_and_nightly("values", REFUSED, brief=2)
def test_what_cannot_be_sent_is_refused_with_its_path_where_it_is_sent(flows, values):
    sends = ECHO.replace("meta=meta, optimizer_params=optimizer", values)
    run = flows.jobs.run("import torch\n" + sends, QUIET)
    assert run.summary.status == "failed"
    assert REFUSED[values] in run.summary.error
    assert "site-1" in run.summary.error or "site-2" in run.summary.error
    text = f"""
    import torch

    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            model = run.fold(model, run.train(model, run.sites, {values}))
        return model
    """
    assert REFUSED[values] in flows.fail(text, QUIET, script=ECHO)
