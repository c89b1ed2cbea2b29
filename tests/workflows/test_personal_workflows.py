"""Personal models: what stays at a site, and what it is good for."""

import numpy as np
import pytest
from flows import finished
from safetensors.torch import load_file
from training_scripts import of_kind, plain

from flstream.server.sampling import sample_sites
from flstream.telemetry.events import SiteLog

FEDPER = 'workflow={type=fedper, args{personal=["^b$"], key_metric=head}}'
# Each site adds its number; and the update of one is refused in round 2.
ADDS = plain(
    """
    flare.log("head", params["b"][0, 0].item())
    params = {name: each + int(site[-1]) for name, each in params.items()}
    if (site, model.current_round) == ("site-2", 1):
        params["w"][3] = float("nan")
    """,
    first="""
    flare.personal(params)
    metrics = {"head": params["b"][0, 0].item()}
    """,
)


def test_fedper_keeps_the_head_at_each_site_and_leaves_that_of_the_global_model_alone(jobs):
    run = finished(jobs.run(ADDS, FEDPER, "clients.min_updates=1", "rounds=3"))
    first, last = load_file(run.directory.checkpoint(0)), load_file(run.directory.final_model)
    assert last["b"].equal(first["b"])
    assert not last["w"].equal(first["w"])
    head = first["b"][0, 0].item()
    logged = {
        (each.site, each.round): each.value - head
        for each in of_kind(run, SiteLog)
        if each.key == "head"
    }
    # The site whose update was refused goes back to the head that it had.
    due = {"site-1": [0, 1, 2], "site-2": [0, 2, 2]}
    for site, values in due.items():
        assert [logged[site, number] for number in (1, 2, 3)] == pytest.approx(values)
    assert run.summary.metrics[-1]["head"] - head == pytest.approx((3 + 4) / 2)
    up, size = run.summary.transfer.up, run.summary.model.bytes
    assert up.bytes % (size - first["b"].nbytes) == 0


NOISE = plain(
    """
    if "ditto_lambda" in model.meta:
        with flare.own_model(params):
            params["w"] += torch.randn(params["w"].shape)
            flare.proximal_term(torch.nn.Module())
    params["w"] += torch.randn(params["w"].shape)
    """,
    first="""
    metrics = {"mean": params["w"].mean().item()}
    if flare.is_evaluate() and "ditto_lambda" in model.meta:
        with flare.own_model(params):
            metrics["personal_mean"] = params["w"].mean().item()
    """,
)


def test_ditto_trains_the_global_model_of_fedavg_and_another_one_at_each_site(jobs):
    run, plain = (
        finished(jobs.run(NOISE, f"workflow={{type={kind}, args{{key_metric=mean}}}}"))
        for kind in ("ditto", "fedavg")
    )
    assert run.summary.model.digest == plain.summary.model.digest
    assert run.summary.warnings == plain.summary.warnings == []
    here, there = run.summary.transfer, plain.summary.transfer
    assert (here.up.bytes, here.down.bytes) == (there.up.bytes, there.down.bytes)
    for row, other in zip(run.summary.metrics, plain.summary.metrics, strict=True):
        assert row["mean"] == other["mean"] != row["personal_mean"]


QUADRATIC = plain(
    """
    regulariser = flare.DynamicRegulariser(net)
    for _ in range(5):
        net.zero_grad()
        (loss() / 2 + regulariser.term()).backward()
        with torch.no_grad():
            net.weight -= 0.2 * net.weight.grad
    """,
    before="""
    import numpy as np

    rng = np.random.default_rng(flare.system_info()["site_index"])
    a, b = torch.tensor(rng.normal(size=(6, 3))), torch.tensor(rng.normal(size=6))
    net = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    loss = lambda: ((net.weight @ a.T - b) ** 2).mean()
    """,
    receive="into=net",
    first='metrics = {"loss": loss().detach()}',
    sends="params=net.state_dict(), meta={'num_examples': int(site[-1])}",
)
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
    run = finished(jobs.run(QUADRATIC, FEDDYN, *settings, model=LINE))
    names = [f"site-{number}" for number in range(1, 6)]
    cohorts = [
        [names.index(site) for site in sample_sites(names, 3, 7, number)] for number in range(1, 7)
    ]
    found = load_file(run.directory.final_model)["weight"].numpy()[0]
    assert np.allclose(found, algorithm_1(6, 5, cohorts, 0.3), rtol=0, atol=1e-12)
