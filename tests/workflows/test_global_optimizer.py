"""``train.optimizer_state = global``: optimizers begin with the mean of the sites' states."""

import numpy as np
import pytest
import torch
from nightly_cases import first_and_nightly
from run_fixtures import Jobs
from safetensors.numpy import load_file
from training_scripts import of_kind

from flstream.job import JobError
from flstream.model.checkpoint import FileSource
from flstream.simulation.forecasting.forecast import forecast
from flstream.telemetry.events import SiteLog

SITES, SIZE, STEPS, ROUNDS = 3, 4, 5, 3

# Beside what is trained: an integer, a float that no optimizer steps, and a tied name.
MODEL = f"""
import torch


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros({SIZE}, dtype=torch.float64))
        self.tied = self.x
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.tensor(0.5))


def build():
    return Point()
"""

SCRIPT = f"""
import numpy as np
import torch
import flstream.client as flare
from model import Point

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"loss": 1.0}}))
        continue
    net = Point()
    net.load_state_dict(model.params)
    rng = np.random.default_rng(flare.system_info()["site_index"])
    scale = torch.tensor(rng.uniform(0.2, 2.0, {SIZE}))
    target = torch.tensor(rng.normal(size={SIZE}))
    OPTIMIZER
    for _ in range({STEPS} + 2 * flare.system_info()["site_index"]):
        optimizer.zero_grad()
        (0.5 * (scale * net.x - target) ** 2).sum().backward()
        optimizer.step()
    flare.log("restored", restored)
    weight = {{"num_examples": 1 + flare.system_info()["site_index"]}}
    flare.send(flare.FLModel(params=net.state_dict(), meta=weight))
"""
BY_MODULE = "restored = flare.restore_optimizer(optimizer, model=net)"
BY_NAMES = "restored = flare.restore_optimizer(optimizer)"
SGD = "optimizer = torch.optim.SGD({}, lr=0.05, momentum=0.9, dampening=0.5)"
ADAM = "optimizer = torch.optim.AdamW({}, lr=0.05)"
KINDS = {
    SGD: ["momentum_buffer"],
    ADAM: ["exp_avg", "exp_avg_sq"],
}
HOW = [f"clients.count={SITES}", "train.optimizer_state=global", "workflow.args.key_metric=loss"]
FLOW = 'workflow.type="flow.py:flow"'
WITH_ADAM = [*HOW, "train.optimizer_moments=[exp_avg, exp_avg_sq]"]


def script(kind, restore=BY_MODULE, parameters="net.parameters()"):
    return SCRIPT.replace("OPTIMIZER", f"{kind.format(parameters)}\n    {restore}")


def reference(kind, moments):
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
            optimizer = eval(kind.format("[own]").removeprefix("optimizer = "))
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
        kept = [*moments, "step"] if "step" in states[0] else moments
        state = {
            key: sum(w * each[key] for w, each in zip(weights, states, strict=True)) for key in kept
        }
    return x, state


@pytest.fixture(scope="module")
def adam(tmp_path_factory, jobs_in: type[Jobs]):
    jobs = jobs_in(tmp_path_factory.mktemp("adam"))
    return jobs.run(script(ADAM), *WITH_ADAM, f"rounds={ROUNDS}", model=MODEL)


@pytest.mark.parametrize(("kind", "moments"), KINDS.items())
def test_rounds_are_those_of_plain_torch(jobs: Jobs, kind, moments):
    how = [*HOW, f"rounds={ROUNDS}", f"train.optimizer_moments=[{', '.join(moments)}]"]
    run = jobs.run(script(kind), *how, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    x, state = reference(kind, moments)
    found = load_file(run.directory.final_model)
    np.testing.assert_allclose(found["tied"], x, rtol=1e-6)
    assert (found["seen"], found["mean"]) == (0, 0.5)
    for name, due in state.items():
        body = "optimizer_steps" if name == "step" else name
        kept = load_file(run.directory.checkpoints / f"round-{ROUNDS:04d}.{body}.safetensors")
        np.testing.assert_allclose(kept["tied"], due, rtol=1e-6)
        assert kept["mean"] == 0
    restored = sorted((each.round, each.value) for each in of_kind(run, SiteLog))
    assert restored == [(number, number > 1) for number in (1, 2, 3) for _ in range(SITES)]


@first_and_nightly(
    "how",
    [
        ["clients.parallel=1"],
        ["clients.parallel=2"],
        ["streaming.mode=push"],
        ["streaming.mode=native"],
        ["streaming.tensor_download_chunk_size=32"],
        ["train.exchange_format=numpy"],
    ],
)
def test_workers_and_chunks_change_no_bit(adam, jobs: Jobs, how):
    text = script(ADAM).replace(
        "(model.params)", "({k: torch.as_tensor(v) for k, v in model.params.items()})"
    )
    run = jobs.run(text, *WITH_ADAM, f"rounds={ROUNDS}", *how, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.model.digest == adam.summary.model.digest
    for body in ("exp_avg", "exp_avg_sq", "optimizer_steps"):
        name = f"round-{ROUNDS:04d}.{body}.safetensors"
        files = [each.directory.checkpoints / name for each in (run, adam)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_run_goes_on_with_the_state_of_the_round_before(adam, jobs: Jobs):
    begun = jobs.run(script(ADAM), *WITH_ADAM, "rounds=2", model=MODEL)
    run = jobs.go_on(begun, script(ADAM), *WITH_ADAM, f"rounds={ROUNDS}", model=MODEL)
    assert run.summary.model.digest == adam.summary.model.digest


def test_an_optimizer_of_named_parameters_needs_no_module(adam, jobs: Jobs):
    named = script(ADAM, BY_NAMES, "net.named_parameters()")
    run = jobs.run(named, *WITH_ADAM, f"rounds={ROUNDS}", model=MODEL)
    assert run.summary.model.digest == adam.summary.model.digest


@pytest.mark.parametrize("workflow", ["fedavg", "ditto", "scaffold"])
def test_what_travels_is_foretold(jobs: Jobs, workflow):
    sends = "meta=weight | {'control': model.meta.get('control')}"
    text = script(ADAM).replace("meta=weight", sends)
    how = [*WITH_ADAM, f"workflow.type={workflow}"]
    run = jobs.run(text, *how, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    job = jobs.make(text, *how, model=MODEL)
    found = forecast(job, FileSource(run.directory.final_model).layout)
    moved = run.summary.transfer
    ways = (moved.down, moved.up)
    assert [found.run_down.bytes, found.run_up.bytes] == [way.bytes + way.reused for way in ways]


def test_a_model_of_the_sites_own_keeps_a_state_of_its_own(jobs: Jobs):
    named = script(ADAM)
    run = jobs.run(named, *WITH_ADAM, "workflow.type=ditto", model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    kept = list((run.directory.path / "sites").rglob("optimizer.beside.safetensors"))
    assert kept
    assert not list((run.directory.path / "sites").rglob("optimizer.safetensors"))


@first_and_nightly(
    ("text", "sentence"),
    [
        (script(ADAM, BY_NAMES), "call restore_optimizer(optimizer, model=net)"),
        (script(ADAM, "restored = False"), "has not called restore_optimizer"),
        (script(SGD), "keeps momentum_buffer of 'tied', and train.optimizer_moments names exp_avg"),
        (script(ADAM.replace("AdamW", "NAdam")), "'mu_product' of the optimizer is no tensor"),
        (script(ADAM, f"{BY_MODULE}\n    {BY_MODULE}"), "two optimizers step tensor 'tied'"),
        (
            script(ADAM, BY_MODULE, "[net.x.detach().clone()]"),
            "is none of the model that restore_optimizer was given",
        ),
    ],
    brief=3,
)
def test_what_cannot_be_shared_fails_the_site_with_a_sentence(jobs: Jobs, text, sentence):
    run = jobs.run(text, *WITH_ADAM, model=MODEL)
    assert run.summary.status == "failed"
    assert sentence in run.summary.error


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (["train.optimizer_moments=[]"], "where train.optimizer_state is global"),
        (["train.optimizer_state=local"], "train.optimizer_moments: .* left out unless"),
        (["workflow.type=swarm"], "train.optimizer_state: .* reset or local in swarm"),
        (["workflow.type=cyclic"], "reset or local in cyclic"),
        (["aggregation.method=median"], "in a job whose train.optimizer_state is global"),
        (["filters.up=[percentile_privacy]"], "in a job whose train.optimizer_state is global"),
        (["privacy.type=central"], "train.optimizer_state: .* where privacy.type is central"),
        (["train.optimizer_moments=[step]"], "counts of steps go with the others"),
        (["train.optimizer_moments=[optimizer]"], "the name has another meaning"),
        (["train.optimizer_moments=[exp_avg, exp_avg]"], "exp_avg is in it twice"),
        (["train.optimizer_moments=[Exp]"], "a name has small letters and underscores"),
        (
            ["workflow.type=scaffold", "train.optimizer_moments=[control]"],
            "other names in scaffold, which has a body control",
        ),
    ],
)
def test_jobs_that_cannot_share_a_state_are_refused(jobs: Jobs, how, sentence):
    with pytest.raises(JobError, match=sentence):
        jobs.make(script(ADAM), *WITH_ADAM, *how, model=MODEL)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ("run.adopt(run.train(model, run.sites[:1]))", "run.adopt() takes the update of one site"),
        ("run.fold(model, run.train(model, run.sites), at=run.sites)", "run.fold() was given at"),
    ],
)
def test_workflows_that_fold_elsewhere_are_told_so(jobs: Jobs, made, sentence):
    (jobs.folder / "flow.py").write_text(
        f"def flow(run):\n    model = run.initial_model()\n    for number in run.rounds():\n"
        f"        model = {made}\n    return model\n"
    )
    run = jobs.run(script(ADAM), *WITH_ADAM[:2], WITH_ADAM[-1], FLOW, model=MODEL)
    assert run.summary.status == "failed"
    assert sentence in run.summary.error
    assert "train.optimizer_state is global, which takes the mean of all" in run.summary.error


def test_moments_are_folded_with_the_weights_that_a_workflow_gives_the_model(jobs: Jobs):
    (jobs.folder / "flow.py").write_text(
        "from flstream.workflows import FoldRule\n\n\n"
        "def flow(run):\n    model = run.initial_model()\n    for number in run.rounds():\n"
        "        rule = FoldRule([1e-9, 1.0, 1e-9], normalise=True)\n"
        "        updates = list(run.train(model, run.sites))\n"
        "        model = run.fold(model, updates, rule)\n    return model\n"
    )
    run = jobs.run(script(ADAM), *WITH_ADAM[:2], WITH_ADAM[-1], FLOW, "rounds=1", model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    steps = load_file(run.directory.checkpoints / "round-0001.optimizer_steps.safetensors")
    np.testing.assert_allclose(steps["tied"], STEPS + 2, rtol=1e-6)
