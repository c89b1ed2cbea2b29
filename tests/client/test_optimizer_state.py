"""The state of a site's optimizer, from one training to the next."""

import pytest
import torch

from flstream.client import FLModel
from flstream.worker.messages import Answered

# Trains two steps of a gradient of ones, and sends where that has led.
SCRIPT = """
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    weight = torch.nn.Parameter(model.params["w"])
    optimizer = torch.optim.{kind}
    restored = flare.restore_optimizer(optimizer)
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"restored": restored}}))
        continue
    flare.send(flare.FLModel(params={{"w": weight.detach()}}, metrics={{"restored": restored}}))
"""
MOMENTUM = "SGD([weight], lr=1 / model.total_rounds, momentum=0.9)"
KINDS = [MOMENTUM, "Adam([weight], lr=0.1)", "Adam([weight], amsgrad=True)", "RMSprop([weight])"]


def reference(kind, steps):
    """The same steps by one optimizer that lives on, from zeros in each round."""
    weight = torch.nn.Parameter(torch.zeros(3))
    names = {"torch": torch, "weight": weight, "model": FLModel(total_rounds=5)}
    optimizer = eval(f"torch.optim.{kind}", names)
    for _ in range(steps // 2):
        with torch.no_grad():
            weight.zero_()
        for _ in range(2):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    return weight.detach()


def train(serving, number, **more):
    server = serving.server
    answer = server.train({"w": torch.zeros(3)}, "site-1", round_number=number, **more)
    restored = bool(answer.sites[0].metrics["restored"])
    return restored, server.fetch(answer)["w"] if answer.sites[0].update else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [None, "local"])
def test_a_training_goes_on_as_if_the_optimizer_had_lived_on(script, kind, policy):
    with script(SCRIPT.format(kind=kind), site="site-1", optimizer_state=policy) as serving:
        assert train(serving, 1)[0] is False
        evaluated = serving.server.evaluate({"w": torch.zeros(3)}, "site-1", round_number=2)
        assert evaluated.sites[0].metrics == {"restored": 0.0}
        restored, weight = train(serving, 3)
    assert restored
    assert torch.equal(weight, reference(kind, 4))


OWN = """
import torch
import flstream.client as flare

net = torch.nn.Linear(1, 1, bias=False)

def step():
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    restored = flare.restore_optimizer(optimizer)
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    return restored

flare.init()
while flare.is_running():
    model = flare.receive(into=net)
    metrics = {}
    if model.current_round:
        with flare.own_model(net):
            metrics["own"] = step()
    metrics["global"] = step()
    flare.send(flare.FLModel(params=net.state_dict(), metrics=metrics))
"""


def test_the_state_is_apart_for_a_model_of_the_sites_own(script, tmp_path):
    found = []
    with script(OWN, site="site-1") as serving:
        for number in (1, 2, 3):
            answer = serving.server.train(
                {"weight": torch.zeros(1, 1)}, "site-1", round_number=number
            )
            serving.server.fetch(answer)
            found.append(answer.sites[0].metrics)
    assert found == [{"global": 0}, {"own": 0, "global": 1}, {"own": 1, "global": 1}]
    names = {path.name for path in tmp_path.rglob(".flstream/*")}
    assert names == {"optimizer.pt", "optimizer.own.pt", "model.own.safetensors"}
    state = torch.load(min(tmp_path.rglob("optimizer.pt")), weights_only=True)
    assert [list(values) for values in state.values()] == [["momentum_buffer"]]


def test_the_learning_rate_is_the_scripts_own_and_reset_keeps_nothing(script, tmp_path):
    # Of the rounds so far, so the second training has another one.
    kind = "SGD([weight], lr=1.0 / (1 + model.current_round), momentum=0.5)"
    with script(SCRIPT.format(kind=kind), site="site-1", optimizer_state="reset") as serving:
        assert torch.equal(train(serving, 1)[1], torch.full((3,), -2.5))
        restored, second = train(serving, 2)
    assert torch.equal(second, torch.full((3,), -1.25))
    assert not restored
    assert not list(tmp_path.rglob(".flstream/*"))


def test_a_state_of_other_parameters_fails_the_site_with_a_sentence(script):
    kind = "SGD([weight if model.current_round == 0 else weight[:2].detach()], lr=1, momentum=0.9)"
    with script(SCRIPT.format(kind=kind)) as serving:
        train(serving, 1)
        serving.server.ask("train", {"w": torch.zeros(3)}, "site-1", round_number=2)
        serving.server.hear(Answered)
        [(_, _, reason)] = serving.server.failures()
    assert "has shape [3], and there it has [2]; make the optimizer of the same" in reason
