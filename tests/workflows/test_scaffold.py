"""SCAFFOLD on least squares that differ from site to site, beside the algorithm in plain NumPy."""

import numpy as np
import pytest
from run_fixtures import Jobs
from safetensors.numpy import load_file

from flstream.job import JobError

SITES, SIZE, STEPS, RATE = 3, 4, 20, 0.05

MODEL = f"""
import torch


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros({SIZE}, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(0))


def build():
    return Point()
"""

DATA = f"""
import numpy as np
import torch
import flstream.client as flare
from model import Point


def problem(index):
    rng = np.random.default_rng(index)
    scale = np.diag(rng.uniform(0.2, 2.0, {SIZE}))
    return torch.tensor(scale), torch.tensor(rng.normal(size={SIZE}))


net = Point()
scale, target = problem(flare.system_info()["site_index"])


def loss():
    return 0.5 * ((scale @ net.x - target) ** 2).sum()


"""

OURS = (
    DATA
    + f"""
flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        assert "control" not in model.meta
        flare.send(flare.FLModel(metrics={{"loss": 1.0}}))
        continue
    net.load_state_dict(model.params)
    control = flare.ScaffoldControl(net, model)
    optimizer = torch.optim.SGD(net.parameters(), lr={RATE})
    for _ in range({STEPS}):
        optimizer.zero_grad()
        loss().backward()
        control.correct()
        optimizer.step()
    meta = {{"control": control.difference({RATE})}}
    flare.send(flare.FLModel(params=net.state_dict(), meta=meta))
    assert "control" not in model.meta, "it would take the memory of the next one"
"""
)

# In the style of NVFlare's example: a helper, numpy arrays in meta, and no question for the task.
THEIRS = (
    DATA
    + f"""
import copy
import nvflare.client as nvflare
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper

helper = PTScaffoldHelper()
helper.init(model=net)
nvflare.init()
while nvflare.is_running():
    received = nvflare.receive()
    controls = received.meta.get(AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL)
    if not controls:
        raise ValueError("no global control")
    for name in controls:
        controls[name] = torch.as_tensor(controls[name])
    helper.load_global_controls(weights=controls)
    net.load_state_dict(received.params)
    before = copy.deepcopy(net)
    c_global, c_local = helper.get_params()
    optimizer = torch.optim.SGD(net.parameters(), lr={RATE})
    for _ in range({STEPS}):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        helper.model_update(net, {RATE}, c_global, c_local)
    helper.terms_update(net, {RATE}, c_global, c_local, before)
    nvflare.send(nvflare.FLModel(
        params=net.cpu().state_dict(),
        metrics={{"loss": 1.0}},
        meta={{
            "NUM_STEPS_CURRENT_ROUND": {STEPS},
            AlgorithmConstants.SCAFFOLD_CTRL_DIFF: helper.get_delta_controls(),
        }},
    ))
"""
)


def problem(index):
    rng = np.random.default_rng(index)
    scale = np.diag(rng.uniform(0.2, 2.0, SIZE))
    return scale, rng.normal(size=SIZE)


def algorithm_1(rounds):
    """The paper's algorithm with option II and all sites: its model and its global control."""
    x, c, own = np.zeros(SIZE), np.zeros(SIZE), [np.zeros(SIZE) for _ in range(SITES)]
    for _ in range(rounds):
        points, changes = [], []
        for site in range(SITES):
            scale, target = problem(site)
            y = x.copy()
            for _ in range(STEPS):
                y = y - RATE * (scale.T @ (scale @ y - target) - own[site] + c)
            changes.append((x - y) / (STEPS * RATE) - c)
            own[site] = own[site] + changes[-1]
            points.append(y)
        x, c = np.mean(points, axis=0), c + sum(changes) / SITES
    return x, c


HOW = (f"clients.count={SITES}", "workflow.type=scaffold", "workflow.args.key_metric=loss")


@pytest.fixture(scope="module")
def ours(tmp_path_factory, jobs_in: type[Jobs]):
    jobs = jobs_in(tmp_path_factory.mktemp("scaffold"))
    return jobs.run(OURS, *HOW, "rounds=3", model=MODEL)


def test_model_and_control_are_those_of_the_paper(ours):
    x, c = algorithm_1(3)
    checkpoints = ours.directory.checkpoints
    found = load_file(ours.directory.final_model)
    np.testing.assert_allclose(found["x"], x, rtol=1e-12)
    control = load_file(checkpoints / "round-0003.control.safetensors")
    assert control.keys() == {"x"}
    np.testing.assert_allclose(control["x"], c, rtol=1e-12, atol=1e-14)
    assert not (checkpoints / "round-0000.control.safetensors").exists()


def test_a_script_for_nvflares_helper_comes_to_the_same(ours, jobs: Jobs):
    run = jobs.run(THEIRS, *HOW, "rounds=3", "train.alias=nvflare", model=MODEL)
    found, due = load_file(run.directory.final_model), load_file(ours.directory.final_model)
    np.testing.assert_allclose(found["x"], due["x"], rtol=1e-12)


def test_an_answer_without_a_control_fails_its_site_by_name(jobs: Jobs):
    script = OURS.replace("meta=meta", "meta={}")
    run = jobs.run(script, *HOW, model=MODEL)
    assert run.summary.status == "failed"
    assert "the answer has no tensors in meta['control']" in run.summary.error


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("aggregation.method=median", "in scaffold, of which further tensors are summed"),
        ("filters.up=[percentile_privacy]", "left out in scaffold, which sends tensors beside"),
    ],
)
def test_what_does_not_go_with_it_is_refused(jobs: Jobs, setting, sentence):
    with pytest.raises(JobError, match=sentence):
        jobs.make(OURS, *HOW, setting, model=MODEL)
