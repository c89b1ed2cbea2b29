"""Tensors that stay with their site: training code finds its own values of them."""

import pytest
import torch
from serving import Serving

from flstream.client.personal import personal_names
from flstream.errors import UsageError
from flstream.model.layout import Layout
from flstream.worker.messages import Answered, Failed
from flstream.worker.meta import pack_values

HEAD = {"meta": pack_values({"personal": ["^head"]}, None)}
HEAD_AND_MU = {"meta": pack_values({"personal": ["^head"], "fedprox_mu": 0.5}, None)}

# Each training adds one to each tensor, in whatever way the model was received.
LEARNER = """
import numpy as np
import flstream.client as flare

class Mine:
    def train(self, model):
        flare.personal(model.params)
        for name, value in model.params.items():
            value += 1
        return flare.FLModel(params=model.params)

    def evaluate(self, model):
        flare.personal(model.params)
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
    assert flare.personal(net) == {"head"}
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


def sent(serving: Serving, site: str, round_number: int, **more: object) -> dict[str, object]:
    """Have a site train a model of zeros, and return what it sends."""
    server = serving.server
    return server.fetch(server.train(model(0.0), site, round_number=round_number, **more))


@pytest.mark.parametrize("exchange_format", ["pytorch", "numpy"])
def test_a_learner_of_several_sites_finds_each_sites_own_head(learner, exchange_format):
    with learner(LEARNER, exchange_format=exchange_format) as serving:
        answer = serving.server.train(model(0.0), "site-1", "site-2", **HEAD)
        for update in serving.server.updates(answer):
            assert update.keys() == {"base"}  # the heads have not left their sites
        # A task repeated for its update begins with the same head, and keeps nothing.
        for keeps in (False, False, True):
            sent(serving, "site-2", round_number=2, **HEAD, keeps_state=keeps)
        answer = serving.server.evaluate(
            model(7.0), "site-1", "site-2", "site-3", round_number=3, **HEAD
        )
    # One training, two trainings, and none: then the head is the one that was received.
    assert [each["head"] for each in scores(answer)] == [2.0, 4.0, 14.0]
    assert [each["base"] for each in scores(answer)] == [21.0, 21.0, 21.0]


def test_a_proximal_term_leaves_the_sites_own_tensors_alone(script):
    with script(SCRIPT, site="site-1") as serving:
        sent(serving, "site-1", round_number=1, **HEAD_AND_MU)
        # By now the head is one away from the global model's, which it never comes back to.
        answer = serving.server.train(model(0.0), "site-1", round_number=2, **HEAD_AND_MU)
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
        serving.server.ask("train", model(0.0), "site-1", **HEAD)
        serving.server.hear(Answered)
        [(site, _, reason)] = serving.server.failures()
    assert site == "site-1"
    assert sentence in reason


SENDS_WITHIN = """
import torch
import flstream.client as flare

net = torch.nn.Linear(2, 1, bias=False)
flare.init()
while flare.is_running():
    model = flare.receive(into=net)
    with flare.own_model(net):
        flare.send(flare.FLModel(params=net.state_dict()))
"""


def test_a_model_of_the_sites_own_is_not_sent(script):
    with script(SENDS_WITHIN, site="site-1") as serving:
        serving.server.ask("train", {"weight": torch.zeros(1, 2)}, "site-1")
        failed = serving.server.hear(Failed)
    assert "send() was called within own_model()" in failed.reason


OWN = """
import torch
import flstream.client as flare

net = torch.nn.Linear(2, 1, bias=False)
flare.init()
while flare.is_running():
    model = flare.receive(into=net)
    before = net.weight.detach().clone()
    with flare.own_model(net):
        own = net.weight.detach().clone()
        drawn = torch.rand(1).item()
        term = flare.proximal_term(net).item()
        with torch.no_grad():
            net.weight += 1
        near = flare.proximal_term(net).item()
    assert torch.equal(net.weight, before)
    metrics = {"own": own.sum().item(), "drawn": drawn, "after": torch.rand(1).item()}
    metrics |= {"term": term, "near": near, "global": flare.proximal_term(net).item()}
    flare.send(flare.FLModel(params=net.state_dict(), metrics=metrics))
"""


def test_a_model_of_the_sites_own_goes_on_where_it_was_and_leaves_the_other_alone(script, tmp_path):
    lambdas = {"meta": pack_values({"ditto_lambda": 2.0}, None)}
    weights = {"weight": torch.full((1, 2), 5.0)}
    with script(OWN, site="site-1") as serving:
        server = serving.server
        answers = []
        for number, ask in enumerate((server.train, server.evaluate, server.train), 1):
            answers.append(ask(weights, "site-1", round_number=number, **lambdas))
            if number != 2:
                server.fetch(answers[-1])
    [first], [evaluated], [second] = map(scores, answers)
    # It begins as the received model, and each training adds one to both weights.
    assert (first["own"], second["own"], evaluated["own"]) == (10.0, 12.0, 12.0)
    assert [each["term"] for each in (first, second)] == [0.0, 2.0]
    assert [each["near"] for each in (first, second)] == [2.0, 8.0]
    assert first["global"] == second["global"] == 0.0
    torch.manual_seed(1)  # of the site
    assert first["after"] == torch.rand(1).item()  # as if there had been no block
    assert first["drawn"] != first["after"]
    assert {path.name for path in tmp_path.rglob("*.safetensors")} == {"model.own.safetensors"}


MISUSED = """
import flstream.client as flare

class Mine:
    def train(self, model):
        %s
        return flare.FLModel(params=model.params)
"""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("flare.personal(model.params, ['tail'])", "the pattern 'tail' is found in no tensor's"),
        ("flare.personal(model.params, ['.'])", "so nothing is left to share"),
        ("flare.personal(model.params, '^head')", "was given '^head'; give it a list of patterns"),
        ("flare.personal(model.params, ['(a'])", "was given '(a', which is no regular expression:"),
        (
            "with flare.own_model(model.params), flare.own_model(model.params): pass",
            "own_model() was called within itself",
        ),
    ],
)
def test_a_helper_that_is_misused_fails_the_site_with_a_sentence(learner, line, sentence):
    with learner(MISUSED % line) as serving:
        serving.server.ask("train", model(0.0), "site-1")
        serving.server.hear(Answered)
        [(site, _, reason)] = serving.server.failures()
    assert site == "site-1"
    assert sentence in reason


def test_patterns_are_found_in_tied_names_too():
    layout = Layout.of([("base", "F32", (3,)), ("head.w", "F32", (2,))], {"tied": "head.w"})
    assert personal_names(["^tied$"], layout) == {"head.w"}
    with pytest.raises(UsageError, match="so nothing is left to share"):
        personal_names(["."], layout)
