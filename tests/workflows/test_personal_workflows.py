"""Personal models: what stays at a site, and what it is good for."""

import pytest
from safetensors.torch import load_file
from training_scripts import of_kind, plain

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
    run = jobs.run(ADDS, FEDPER, "clients.min_updates=1", "rounds=3").finished()
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
        jobs.run(NOISE, f"workflow={{type={kind}, args{{key_metric=mean}}}}").finished()
        for kind in ("ditto", "fedavg")
    )
    assert run.summary.model.digest == plain.summary.model.digest
    assert run.summary.warnings == plain.summary.warnings == []
    here, there = run.summary.transfer, plain.summary.transfer
    assert (here.up.bytes, here.down.bytes) == (there.up.bytes, there.down.bytes)
    for row, other in zip(run.summary.metrics, plain.summary.metrics, strict=True):
        assert row["mean"] == other["mean"] != row["personal_mean"]
