"""SCAFFOLD and FedDyn on least squares of each site's own, beside their papers in plain NumPy."""

import numpy as np
import pytest
from run_fixtures import Jobs
from safetensors.numpy import load_file
from training_scripts import plain

from flstream.server.sampling import sample_sites

STEPS, RATE, ALPHA = 5, 0.2, 0.3

MODEL = """
import torch


class Line(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(self.weight)
        self.register_buffer("seen", torch.tensor(0))


build = Line
"""
DATA = f"""
import numpy as np
from model import Line

net = Line()
rng = np.random.default_rng(flare.system_info()["site_index"])
a, b = torch.tensor(rng.normal(size=(6, 3))), torch.tensor(rng.normal(size=6))
optimizer = torch.optim.SGD(net.parameters(), lr={RATE})


def train(step, term=lambda: 0.0):
    for _ in range({STEPS}):
        optimizer.zero_grad()
        (((net.weight @ a.T - b) ** 2).mean() / 2 + term()).backward()
        step()
"""
OURS = plain(
    f"""
    net.load_state_dict(params)
    control = flare.ScaffoldControl(net, model)
    train(lambda: (control.correct(), optimizer.step()))
    meta = {{"control": control.difference({RATE})}}
    """,
    before=DATA,
    first='assert ("control" in model.meta) != flare.is_evaluate()',
    sends="params=net.state_dict(), meta=meta",
)
# In the style of NVFlare's example: a helper, numpy arrays in meta, and no question for the task.
THEIRS = (
    "import torch\nimport nvflare.client as flare\n"
    + DATA
    + f"""
import copy
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper

helper = PTScaffoldHelper()
helper.init(model=net)
flare.init()
while flare.is_running():
    received = flare.receive()
    controls = received.meta[AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL]
    helper.load_global_controls(
        weights={{name: torch.as_tensor(controls[name]) for name in controls}}
    )
    net.load_state_dict(received.params)
    before = copy.deepcopy(net)
    c_global, c_local = helper.get_params()
    train(lambda: (optimizer.step(), helper.model_update(net, {RATE}, c_global, c_local)))
    helper.terms_update(net, {RATE}, c_global, c_local, before)
    meta = {{
        "NUM_STEPS_CURRENT_ROUND": {STEPS},
        AlgorithmConstants.SCAFFOLD_CTRL_DIFF: helper.get_delta_controls(),
    }}
    flare.send(flare.FLModel(params=net.state_dict(), metrics={{"score": 1.0}}, meta=meta))
"""
)
FEDDYN = plain(
    "train(optimizer.step, flare.DynamicRegulariser(net).term)",
    before=DATA,
    receive="into=net",
    # Each counts alike, whatever this says.
    sends="params=net.state_dict(), meta={'num_examples': int(site[-1])}, metrics=metrics",
)
HOW = ("clients.count=3", "workflow={type=scaffold, args.key_metric=score}")


def descended(site, start, slope, alpha=0.0):
    """The point that a site comes to, with a slope and a pull to the start added to its loss."""
    rng = np.random.default_rng(site)
    a, b, point = rng.normal(size=(6, 3)), rng.normal(size=6), start
    for _ in range(STEPS):
        point = point - RATE * (a.T @ (a @ point - b) / 6 + slope + alpha * (point - start))
    return point


def scaffold(rounds, sites):
    """Algorithm 1 of Karimireddy et al. 2020 with option II and all sites: model and control."""
    x, c, own = np.zeros(3), np.zeros(3), np.zeros((sites, 3))
    for _ in range(rounds):
        points = np.array([descended(site, x, c - own[site]) for site in range(sites)])
        changes = (x - points) / (STEPS * RATE) - c
        own = own + changes
        x, c = points.mean(axis=0), c + changes.mean(axis=0)
    return x, c


def feddyn(cohorts, sites):
    """Algorithm 1 of Acar et al. 2021, whose local problem is solved by some steps of gradient."""
    theta, h, gradients = np.zeros(3), np.zeros(3), np.zeros((sites, 3))
    for cohort in cohorts:
        points = np.array([descended(k, theta, -gradients[k], ALPHA) for k in cohort])
        gradients[cohort] -= ALPHA * (points - theta)
        h = h - ALPHA / sites * (points - theta).sum(axis=0)
        theta = points.mean(axis=0) - h / ALPHA
    return theta


@pytest.mark.parametrize(
    ("script", "alias"), [(OURS, "null"), (THEIRS, "nvflare")], ids=["ours", "NVFlare's"]
)
def test_model_and_control_of_scaffold_are_those_of_the_paper(jobs: Jobs, script, alias):
    run = jobs.run(script, *HOW, "rounds=3", f"train.alias={alias}", model=MODEL).finished()
    x, c = scaffold(3, 3)
    np.testing.assert_allclose(load_file(run.directory.final_model)["weight"][0], x, rtol=1e-12)
    control = load_file(run.directory.checkpoints / "round-0003.control.safetensors")
    assert control.keys() == {"weight"}
    np.testing.assert_allclose(control["weight"][0], c, rtol=1e-12, atol=1e-14)


def test_the_model_of_feddyn_is_that_of_the_paper(jobs: Jobs):
    args = f"args{{feddyn_alpha={ALPHA}, key_metric=score}}"
    how = ("clients.count=5", "clients.per_round=3", "rounds=6")
    run = jobs.run(FEDDYN, f"workflow={{type=feddyn, {args}}}", *how, model=MODEL).finished()
    names = [f"site-{number}" for number in range(1, 6)]
    drawn = (sample_sites(names, 3, 7, number) for number in range(1, 7))
    theta = feddyn([[names.index(site) for site in cohort] for cohort in drawn], 5)
    found = load_file(run.directory.final_model)["weight"][0]
    np.testing.assert_allclose(found, theta, rtol=0, atol=1e-12)


def test_an_answer_without_a_control_fails_its_site_by_name(jobs: Jobs):
    run = jobs.run(OURS.replace("meta=meta", "meta={}"), *HOW, model=MODEL)
    assert run.summary.status == "failed"
    assert "the answer has no tensors in meta['control']" in run.summary.error
