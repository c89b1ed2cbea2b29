"""Decorated functions: the received model comes in, and what they return is sent."""

from nightly_cases import first_and_nightly

SCRIPT = """
import flstream.client as flare


@flare.train
def fit(model=None, add=0.0):
    model.params["w"] += add
    return flare.FLModel(params=model.params)


@flare.evaluate
def score(model):
    return {"accuracy": model.params["w"][0].item()}


flare.init()
calls = []
while flare.is_running():
    FIRST
    LAST
    print(flare.get_task_name())
"""
MODEL = "import torch\ndef build(): return {'w': torch.zeros(2)}"
ORDERS = [("score()", "fit(add=1.0)"), ("fit(None, 1.0)", "score()")]


@first_and_nightly("order", ORDERS)
def test_a_training_and_a_score_are_each_done_once(jobs, order):
    script = SCRIPT.replace("FIRST", order[0]).replace("LAST", order[1])
    run = jobs.run(script, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.warnings == []
    # It has an evaluate decorator, so models are scored in tasks of their own.
    assert run.summary.evaluate == "task"
    assert [each["accuracy"] for each in run.summary.metrics] == [1.0, 2.0]
    # Where the score comes first, it goes along with the update.
    scored = [each.get("train") for each in run.summary.metrics]
    expected = [{"accuracy": 0.0}, {"accuracy": 1.0}] if order == ORDERS[0] else [None, None]
    assert scored == expected


MISTAKES = {
    "return flare.FLModel(params=model.params)": (
        "return model.params",
        "fit(), decorated with train, returned a dict",
    ),
    'return {"accuracy": model.params["w"][0].item()}': (
        "return 0.5",
        "score(), decorated with evaluate, returned a float",
    ),
    "def score(model):": (
        "def score():",
        "score() takes no argument",
    ),
}


@first_and_nightly("sound", MISTAKES)
def test_a_function_that_returns_something_else_is_named(jobs, sound):
    wrong, message = MISTAKES[sound]
    script = SCRIPT.replace("FIRST", "score()").replace("LAST", "fit()").replace(sound, wrong)
    assert message in jobs.run(script, model=MODEL).summary.error
