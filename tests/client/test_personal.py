"""Tensors that stay with their site: training code finds its own values of them."""

import pytest
import torch
from serving import Serving

from flstream.client.messages import Answered
from flstream.client.meta import pack_values
from flstream.client.personal_part import PersonalPart
from flstream.errors import UsageError
from flstream.model.layout import Layout

HEAD = PersonalPart(["^head"])
MU = pack_values({"fedprox_mu": 0.5})

# Each training adds one to each tensor, in whatever way the model was received.
LEARNER = """
import numpy as np
import flstream.client as flare

class Mine:
    def train(self, model):
        for name, value in model.params.items():
            value += 1
        return flare.FLModel(params=model.params)

    def evaluate(self, model):
        sums = {name: float(np.asarray(v).sum()) for name, v in model.params.items()}
        return flare.FLModel(metrics=sums)
"""
SCRIPT = """
import torch
import flstream.client as flare

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Parameter(torch.zeros(3))
        self.head = torch.nn.Parameter(torch.zeros(2))

net = Net()
flare.init()
while flare.is_running():
    model = flare.receive(into=net)
    metrics = {
        "term": flare.proximal_term(net).item(),
        "explicit": flare.proximal_term(net, model.params).item(),
    }
    with torch.no_grad():
        net.base += 1
        net.head += 1
    flare.send(flare.FLModel(params=net.state_dict(), metrics=metrics))
"""


def model(value: float) -> dict[str, torch.Tensor]:
    return {"base": torch.full((3,), value), "head": torch.full((2,), value)}


def scores(answer: Answered) -> list[dict[str, float]]:
    return [each.metrics for each in answer.sites]


def sent(serving: Serving, *sites: str, round_number: int, **more: object) -> dict[str, object]:
    """Have sites train a model of zeros, and return what they send."""
    server = serving.server
    return server.fetch(server.train(model(0.0), *sites, round_number=round_number, **more))


@pytest.mark.parametrize("exchange_format", ["pytorch", "numpy"])
def test_a_learner_of_several_sites_finds_each_sites_own_head(learner, exchange_format):
    with learner(LEARNER, exchange_format=exchange_format) as serving:
        first = sent(serving, "site-1", "site-2", round_number=1, personal=HEAD)
        assert first.keys() == {"0/base", "1/base"}  # the heads have not left their sites
        # A task repeated for its update begins with the same head, and keeps nothing.
        for keeps in (False, False, True):
            sent(serving, "site-2", round_number=2, personal=HEAD, keeps_state=keeps)
        answer = serving.server.evaluate(
            model(7.0), "site-1", "site-2", "site-3", round_number=3, personal=HEAD
        )
    # One training, two trainings, and none: then the head is the one that was received.
    assert [each["head"] for each in scores(answer)] == [2.0, 4.0, 14.0]
    assert [each["base"] for each in scores(answer)] == [21.0, 21.0, 21.0]


def test_a_proximal_term_leaves_the_sites_own_tensors_alone(script):
    with script(SCRIPT, site="site-1") as serving:
        sent(serving, "site-1", round_number=1, personal=HEAD, meta=MU)
        # By now the head is one away from the global model's, which it never comes back to.
        answer = serving.server.train(model(0.0), "site-1", round_number=2, personal=HEAD, meta=MU)
        serving.server.fetch(answer)
    assert scores(answer) == [{"term": 0.0, "explicit": 0.0}]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("params={'base': model.params['base']}", "lacks tensor 'head', which is the site's own"),
        ("params=model.params, params_type='DIFF'", "has differences (params_type DIFF)"),
        ("dict.fromkeys(model.params, model.params['base'])", "has shape [3] instead of [2]"),
    ],
)
def test_an_answer_that_cannot_be_kept_fails_the_site_with_a_sentence(learner, change, sentence):
    with learner(LEARNER.replace("params=model.params", change)) as serving:
        serving.server.ask("train", model(0.0), "site-1", personal=HEAD)
        serving.server.hear(Answered)
        [(site, _, reason)] = serving.server.failures()
    assert site == "site-1"
    assert sentence in reason


def test_patterns_that_fit_nothing_or_leave_nothing_are_refused():
    layout = Layout.of([("base", "F32", (3,)), ("head.w", "F32", (2,))], {"tied": "head.w"})
    assert PersonalPart(["^tied$"]).names(layout) == {"head.w"}
    with pytest.raises(UsageError, match=r"args.personal: the pattern 'tail' is found in no "):
        PersonalPart(["^head", "tail"]).names(layout)
    with pytest.raises(UsageError, match="so nothing is left to aggregate"):
        PersonalPart(["."]).names(layout)
