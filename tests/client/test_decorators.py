"""Decorated functions: the received model comes in, and what they return is sent."""

import pytest
import torch

from flstream.worker.messages import Failed

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
while flare.is_running():
    FIRST
    LAST
    print(flare.get_task_name())
"""
MODEL = {"w": torch.zeros(2)}


@pytest.mark.parametrize("site", ["site-1", None])
@pytest.mark.parametrize("order", [("score()", "fit(add=1.0)"), ("fit(None, 1.0)", "score()")])
def test_a_training_and_a_score_are_each_done_once(script, order, site):
    text = SCRIPT.replace("FIRST", order[0]).replace("LAST", order[1])
    with script(text, site=site) as serving:
        for number in (1, 2):
            trained = serving.server.train(MODEL, "site-1", round_number=number)
            # Where the score comes first, it goes along with the update.
            assert trained.sites[0].metrics == ({"accuracy": 0.0} if order[0] == "score()" else {})
            assert serving.server.fetch(trained)["w"].tolist() == [1.0, 1.0]
            scored = serving.server.evaluate(MODEL, "site-1", round_number=number)
            assert scored.sites[0].metrics == {"accuracy": 0.0}


@pytest.mark.parametrize(
    ("sound", "wrong", "message"),
    [
        ("flare.FLModel(params=model.params)", "model.params", "fit(), decorated with train, ret"),
        ('{"accuracy": model.params["w"][0].item()}', "0.5", "score(), decorated with evaluate, r"),
        ("def score(model):", "def score():", "score() takes no argument"),
    ],
)
def test_a_function_that_returns_something_else_is_named(script, sound, wrong, message):
    text = SCRIPT.replace("FIRST", "score()").replace("LAST", "fit()").replace(sound, wrong)
    with script(text, site="site-1") as serving:
        serving.server.ask("train", MODEL, "site-1")
        assert message in serving.server.hear(Failed).reason
