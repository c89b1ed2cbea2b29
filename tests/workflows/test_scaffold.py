"""SCAFFOLD on least squares that differ from site to site, beside the algorithm in plain NumPy."""

import numpy as np
import pytest
from flows import finished
from run_fixtures import Jobs
from safetensors.numpy import load_file
from training_scripts import plain

SITES, SIZE, STEPS, RATE = 3, 4, 20, 0.05

MODEL = f"""
import torch


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros({SIZE}, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(0))


build = Point
"""
DATA = f"""
import numpy as np
from model import Point

net = Point()
rng = np.random.default_rng(flare.system_info()["site_index"])
scale, target = torch.tensor(rng.uniform(0.2, 2.0, {SIZE})), torch.tensor(rng.normal(size={SIZE}))
optimizer = torch.optim.SGD(net.parameters(), lr={RATE})


def train(correct):
    for _ in range({STEPS}):
        optimizer.zero_grad()
        (0.5 * ((scale * net.x - target) ** 2).sum()).backward()
        correct()
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
HOW = (f"clients.count={SITES}", "workflow={type=scaffold, args.key_metric=score}")


def algorithm_1(rounds):
    """The paper's algorithm with option II and all sites: its model and its global control."""
    x, c, own = np.zeros(SIZE), np.zeros(SIZE), [np.zeros(SIZE) for _ in range(SITES)]
    for _ in range(rounds):
        points, changes = [], []
        for site in range(SITES):
            rng = np.random.default_rng(site)
            scale, target = rng.uniform(0.2, 2.0, SIZE), rng.normal(size=SIZE)
            y = x.copy()
            for _ in range(STEPS):
                y = y - RATE * (scale * (scale * y - target) - own[site] + c)
            changes.append((x - y) / (STEPS * RATE) - c)
            own[site] = own[site] + changes[-1]
            points.append(y)
        x, c = np.mean(points, axis=0), c + sum(changes) / SITES
    return x, c


@pytest.mark.parametrize(
    ("script", "alias"), [(OURS, "null"), (THEIRS, "nvflare")], ids=["ours", "NVFlare's"]
)
def test_model_and_control_are_those_of_the_paper(jobs: Jobs, script, alias):
    run = finished(jobs.run(script, *HOW, "rounds=3", f"train.alias={alias}", model=MODEL))
    x, c = algorithm_1(3)
    np.testing.assert_allclose(load_file(run.directory.final_model)["x"], x, rtol=1e-12)
    control = load_file(run.directory.checkpoints / "round-0003.control.safetensors")
    assert control.keys() == {"x"}
    np.testing.assert_allclose(control["x"], c, rtol=1e-12, atol=1e-14)


def test_an_answer_without_a_control_fails_its_site_by_name(jobs: Jobs):
    run = jobs.run(OURS.replace("meta=meta", "meta={}"), *HOW, model=MODEL)
    assert run.summary.status == "failed"
    assert "the answer has no tensors in meta['control']" in run.summary.error
