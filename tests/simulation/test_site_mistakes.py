"""What training code does wrong: an answer in a sentence, or a warning that is given once."""

import pytest
from nightly_cases import first_and_nightly

MISTAKES = {
    "flare.send({'w': 1})": "send() was given a dict; give it an FLModel, such as",
    "flare.FLModel(params=torch.nn.Linear(1, 1))": "(params=...) was given a Linear; give it tens",
    "flare.FLModel(metrics=[1.0])": "FLModel(metrics=...) was given a list; give it numbers by",
    "flare.FLModel(meta=3)": "FLModel(meta=...) was given a int; give it plain values by name",
    "flare.send(flare.FLModel(params=model.params, metrics={'loss': 'low'}))": (
        "the metric 'loss' is a str that is no number; send one, such as loss.item()"
    ),
    "raise SystemExit('no data')": "client.py ended itself: no data",
    "__import__('argparse').ArgumentParser('it').parse_args(['-x'])": (
        "client.py exited with status 2: it: error: unrecognized arguments: -x"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_with_a_call_is_a_sentence(jobs, mistake):
    run = jobs.run(f"""
    import torch
    import flstream.client as flare
    flare.init()
    model = flare.receive()
    {mistake}
    """)
    assert MISTAKES[mistake] in run.summary.error


CALLS = {
    "flare.receive(); flare.receive(into=model)": (
        "the model of this task was received before, into other tensors; give into to the first"
    ),
    "flare.receive()\nwhile flare.is_running(): flare.receive()": (
        "turns of the loop have gone by without an answer; send() an FLModel in each"
    ),
    "flare.send(flare.FLModel(params=flare.receive().params, metrics={1: 2.0}))": (
        "1 cannot name a metric, since it is no string; rename it"
    ),
    "flare.send(flare.FLModel(params=flare.receive().params, meta={'num_examples': 'many'}))": (
        "meta['num_examples'] is a str that is no number; send the number of examples"
    ),
    "import numpy; numpy.loadtxt('data/mayo.csv')": "a site works in a folder of its own",
    "raise ValueError('one\\n\\ttwo')": "raised ValueError: one two",
}


@first_and_nightly("call", CALLS, brief=3)
def test_what_training_code_does_wrong_is_answered_by_a_sentence(jobs, call):
    model = "model = {'w': torch.zeros(1000), 'b': torch.zeros(3, 5), 'steps': torch.tensor(0)}"
    head = f"import torch\nimport flstream.client as flare\nflare.init()\n{model}\n"
    assert CALLS[call] in jobs.run(head + call).summary.error


@pytest.mark.parametrize("parallel", [2, 1])
def test_another_dtype_is_refused_on_the_line_that_sends_it(jobs, parallel):
    script = """
    import flstream.client as flare
    flare.init()
    model = flare.receive()
    model.params["b"] = model.params["b"].half()
    flare.send(flare.FLModel(params=model.params, metrics={}))
    """
    run = jobs.run(script, f"clients.parallel={parallel}")
    assert (
        "client.py, line 6 raised ClientError: the update does not fit the model: tensor 'b' has "
        "dtype F16 instead of F64; convert it before send(), or build the model in that dtype"
    ) in run.summary.error


LAZY = """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    lazy = flare.get_site_name() == "site-2" and model.current_round > 0
    if KIND == "DIFF":
        for each in model.params.values():
            each.zero_()
    if not lazy:
        model.params["steps"] += 1
    if KIND == "PARTIAL":
        partial = {"steps": model.params["steps"]}
        flare.send(flare.FLModel(params=partial, meta={"partial": True}))
    else:
        flare.send(flare.FLModel(params=model.params, params_type=KIND))
"""
EQUAL = "in round 2, the update of site-2 is equal to the model that was received, so nothing was"


@first_and_nightly("kind", ["FULL", "DIFF", "PARTIAL"])
@first_and_nightly("parallel", [2, 1], brief=2)
def test_an_update_that_is_what_was_received_is_told_of_once(jobs, kind, parallel):
    script = LAZY.replace("KIND", repr(kind))
    run = jobs.run(script, "rounds=4", f"clients.parallel={parallel}")
    assert run.summary.status == "finished", run.summary.error
    [warning] = run.summary.warnings
    assert warning.startswith(EQUAL)


def test_an_adopted_update_that_is_what_was_received_is_told_of(jobs):
    run = jobs.run(LAZY.replace("KIND", repr("FULL")), "rounds=3", "workflow.type=cyclic")
    [warning] = run.summary.warnings
    assert warning.startswith(EQUAL)
