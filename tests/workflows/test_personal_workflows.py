"""Personal models: what stays at a site, and what it is good for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flows import lines
from safetensors.torch import load_file

from flstream.server.sampling import sample_sites
from flstream.telemetry.events import SiteLog

# Sites of opposite labels: what fits one is wrong for another.
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.base(x))))
"""
SCRIPT = """
import torch
from model import Net
import flstream.client as flare

net = Net()
flare.init()
index = flare.system_info()["site_index"]
data = torch.Generator().manual_seed(index)
x = torch.randn(64, 4, generator=data)
y = (x[:, 0] * (-1) ** index > 0).long()
while flare.is_running():
    model = flare.receive(into=net)
    if flare.is_evaluate():
        net.eval()
        with torch.no_grad():
            accuracy = (net(x).argmax(1) == y).float().mean()
        flare.send(flare.FLModel(metrics={"accuracy": accuracy}))
        continue
    net.train()
    if not model.meta.get("personal"):
        flare.log("head", net.head.weight.double().sum())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    flare.restore_optimizer(optimizer)
    for _ in range(4):
        batch = torch.randperm(64)[:32]
        loss = torch.nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss = loss + flare.proximal_term(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if %s:
        net.base.weight.data[0, 0] = float("nan")
    flare.send(flare.FLModel(params=net.state_dict(), meta={"num_examples": 64 + index}))
"""
FINE = SCRIPT % "False"
FAILING = SCRIPT % "index == 1 and model.current_round == 1"
FEDPER = 'workflow={type=fedper, args{personal=["^head"]}}'
DITTO = "workflow={type=ditto, args{ditto_lambda=0.05}}"
BASE = ("clients.count=4", "rounds=3", 'model.factory="model:Net"')


@pytest.fixture(scope="module")
def runs(jobs_in, tmp_path_factory):
    """Runs by their settings, each done once."""
    known = {}

    def run(*settings, script=FINE):
        if (settings, script) not in known:
            jobs = jobs_in(tmp_path_factory.mktemp("run"))
            done = jobs.run(script, *BASE, *settings, model=MODEL)
            assert done.summary.status == "finished", done.summary.error
            known[settings, script] = done
        return known[settings, script]

    return run


def test_fedper_sends_no_head_and_leaves_that_of_the_global_model_alone(runs):
    run, plain = runs(FEDPER), runs()
    head = (6 * 2 + 2) * 4
    up = plain.summary.transfer.up.bytes - run.summary.transfer.up.bytes
    assert up == 3 * 4 * head
    first = load_file(run.directory.checkpoint(0))
    last = load_file(run.directory.final_model)
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert changed == set(first) - {"head.weight", "head.bias"}
    # A head of its own is what a site needs whose labels are the others' turned round.
    assert run.summary.metrics[-1]["accuracy"] > plain.summary.metrics[-1]["accuracy"] + 0.2


def test_ditto_trains_the_global_model_of_fedavg_and_a_better_one_at_each_site(runs):
    run, plain = runs(DITTO), runs()
    assert run.summary.model.digest == plain.summary.model.digest
    here, there = run.summary.transfer, plain.summary.transfer
    assert here.up.bytes == there.up.bytes
    down = [way.down.bytes + way.down.reused for way in (here, there)]
    assert down[0] == 2 * down[1]
    rows = run.summary.metrics
    assert [row["accuracy"] for row in rows] == [r["accuracy"] for r in plain.summary.metrics]
    assert rows[-1]["personal_accuracy"] > rows[-1]["accuracy"] + 0.2


def heads(run):
    """The sum of the head with which each site has begun each round."""
    logged = [event for event in lines(run) if isinstance(event, SiteLog)]
    return {(each.site, each.round): each.value for each in logged if each.key == "head"}


def test_a_site_whose_update_is_refused_goes_back_to_the_head_that_it_had(runs):
    found = heads(runs(FEDPER, "clients.min_updates=3", script=FAILING))
    assert found["site-2", 3] == found["site-2", 2] != found["site-2", 1]
    assert found["site-1", 3] != found["site-1", 2]


def test_patterns_that_are_found_in_no_name_end_the_run_with_a_sentence(jobs):
    run = jobs.run(FINE, *BASE, 'workflow={type=fedper, args{personal=["^tail"]}}', model=MODEL)
    assert run.summary.status == "failed"
    assert "workflow.args.personal: the pattern '^tail' is found in no tensor's name" in (
        run.summary.error or ""
    )


QUADRATIC = """
import numpy as np
import torch
import flstream.client as flare

flare.init()
index = flare.system_info()["site_index"]
rng = np.random.default_rng(index)
a, b = torch.tensor(rng.normal(size=(6, 3))), torch.tensor(rng.normal(size=6))
net = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
while flare.is_running():
    flare.receive(into=net)
    if flare.is_evaluate():
        loss = ((net.weight @ a.T - b) ** 2).mean()
        flare.send(flare.FLModel(metrics={"loss": loss.detach()}))
        continue
    regulariser = flare.DynamicRegulariser(net)
    for _ in range(5):
        loss = ((net.weight @ a.T - b) ** 2).mean() / 2 + regulariser.term()
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            net.weight -= 0.2 * net.weight.grad
    flare.send(flare.FLModel(params=net.state_dict(), meta={"num_examples": 1 + index}))
"""
LINE = """
import torch

def build():
    return {"weight": torch.zeros(1, 3, dtype=torch.float64)}
"""
FEDDYN = "workflow={type=feddyn, args{feddyn_alpha=0.3, key_metric=loss, key_metric_mode=min}}"


def algorithm_1(rounds, sites, cohorts, alpha):
    """Algorithm 1 of Acar et al. 2021, whose local problem is solved by 5 steps of gradient."""
    rng = [np.random.default_rng(index) for index in range(sites)]
    data = [(each.normal(size=(6, 3)), each.normal(size=6)) for each in rng]
    theta, h = np.zeros(3), np.zeros(3)
    gradients = np.zeros((sites, 3))
    for number in range(rounds):
        models = []
        for k in cohorts[number]:
            a, b = data[k]
            own = theta.copy()
            for _ in range(5):
                slope = a.T @ (a @ own - b) / 6 - gradients[k] + alpha * (own - theta)
                own = own - 0.2 * slope
            gradients[k] -= alpha * (own - theta)
            models.append(own)
        h = h - alpha / sites * sum(each - theta for each in models)
        theta = sum(models) / len(models) - h / alpha
    return theta


def test_feddyn_is_algorithm_1_of_its_paper(jobs):
    settings = ("clients.count=5", "clients.per_round=3", "rounds=6")
    run = jobs.run(QUADRATIC, FEDDYN, *settings, model=LINE)
    assert run.summary.status == "finished", run.summary.error
    names = [f"site-{number}" for number in range(1, 6)]
    cohorts = [
        [names.index(site) for site in sample_sites(names, 3, 7, number)] for number in range(1, 7)
    ]
    found = load_file(run.directory.final_model)["weight"].numpy()[0]
    assert np.allclose(found, algorithm_1(6, 5, cohorts, 0.3), rtol=0, atol=1e-12)
    state: Path = run.directory.checkpoints / "round-0006.optimizer.safetensors"
    assert set(load_file(state)) == {"momentum.weight"}
