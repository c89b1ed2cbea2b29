"""``train.optimizer_state = global``: optimizers begin with the mean of the sites' states."""

import numpy as np
import pytest
import torch
from flows import finished
from run_fixtures import Jobs
from safetensors.numpy import load_file
from training_scripts import plain

from flstream.job import JobError

SITES, SIZE, STEPS, ROUNDS = 3, 4, 5, 3

# Beside what is trained: an integer and a tied name.
MODEL = f"""
import torch


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros({SIZE}, dtype=torch.float64))
        self.tied = self.x
        self.register_buffer("seen", torch.tensor(0))


build = Point
"""

SCRIPT = plain(
    f"""
    net = Point()
    net.load_state_dict(params)
    rng = np.random.default_rng(int(site[-1]) - 1)
    scale = torch.tensor(rng.uniform(0.2, 2.0, {SIZE}))
    target = torch.tensor(rng.normal(size={SIZE}))
    OPTIMIZER
    for _ in range({STEPS} + 2 * (int(site[-1]) - 1)):
        optimizer.zero_grad()
        (0.5 * (scale * net.x - target) ** 2).sum().backward()
        optimizer.step()
    weight = {{"num_examples": int(site[-1])}}
    """,
    before="import numpy as np\nfrom model import Point",
    sends="params=net.state_dict(), meta=weight",
)
BY_MODULE = "flare.restore_optimizer(optimizer, model=net)"
BY_NAMES = "flare.restore_optimizer(optimizer)"
ADAM = "optimizer = torch.optim.AdamW({}, lr=0.05)"
MOMENTS = ["exp_avg", "exp_avg_sq"]
SHARED = ["train.optimizer_state=global", "train.optimizer_moments=[exp_avg, exp_avg_sq]"]
HOW = [f"clients.count={SITES}", *SHARED, "workflow.args.key_metric=score"]


def script(restore=BY_MODULE, parameters="net.parameters()", kind=ADAM):
    return SCRIPT.replace("OPTIMIZER", f"{kind.format(parameters)}\n    {restore}")


def reference():
    """The rounds in plain torch: each optimizer begins with the mean of those before."""
    weights = np.arange(1, SITES + 1) / sum(range(1, SITES + 1))
    x, state = torch.zeros(SIZE, dtype=torch.float64), {}
    for _ in range(ROUNDS):
        points, states = [], []
        for site in range(SITES):
            rng = np.random.default_rng(site)
            scale = torch.tensor(rng.uniform(0.2, 2.0, SIZE))
            target = torch.tensor(rng.normal(size=SIZE))
            own = torch.nn.Parameter(x.clone())
            optimizer = torch.optim.AdamW([own], lr=0.05)
            if state:
                groups = optimizer.state_dict()["param_groups"]
                begun = {key: value.clone() for key, value in state.items()}
                optimizer.load_state_dict({"state": {0: begun}, "param_groups": groups})
            for _ in range(STEPS + 2 * site):
                optimizer.zero_grad()
                (0.5 * (scale * own - target) ** 2).sum().backward()
                optimizer.step()
            points.append(own.detach())
            states.append(optimizer.state[own])
        x = sum(w * each for w, each in zip(weights, points, strict=True))
        state = {
            key: sum(w * each[key] for w, each in zip(weights, states, strict=True))
            for key in (*MOMENTS, "step")
        }
    return x, state


def test_rounds_are_those_of_plain_torch_and_what_travels_is_foretold(jobs: Jobs):
    named = script(BY_NAMES, "net.named_parameters()")
    run = finished(jobs.run(named, *HOW, f"rounds={ROUNDS}", model=MODEL))
    x, state = reference()
    found = load_file(run.directory.final_model)
    np.testing.assert_allclose(found["tied"], x, rtol=1e-6)
    assert found["seen"] == 0
    for name, due in state.items():
        body = "optimizer_steps" if name == "step" else name
        kept = load_file(run.directory.checkpoints / f"round-{ROUNDS:04d}.{body}.safetensors")
        np.testing.assert_allclose(kept["tied"], due, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (script(BY_NAMES), "call restore_optimizer(optimizer, model=net)"),
        (script(kind=ADAM.replace("AdamW", "NAdam")), "'mu_product' of the optimizer is no tensor"),
        (script(f"{BY_MODULE}\n    {BY_MODULE}"), "two optimizers step tensor 'tied'"),
    ],
)
def test_what_cannot_be_shared_fails_the_site_with_a_sentence(jobs: Jobs, text, sentence):
    run = jobs.run(text, *HOW, model=MODEL)
    assert run.summary.status == "failed"
    assert sentence in run.summary.error


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (["train.optimizer_state=local"], "train.optimizer_moments: .* left out unless"),
        (["workflow.type=swarm"], "train.optimizer_state: .* reset or local in swarm"),
        (["aggregation.method=median"], "in a job whose train.optimizer_state is global"),
    ],
)
def test_jobs_that_cannot_share_a_state_are_refused(jobs: Jobs, how, sentence):
    with pytest.raises(JobError, match=sentence):
        jobs.make(script(), *HOW, *how, model=MODEL)
