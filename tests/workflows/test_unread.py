"""Warnings of values that a workflow sends and no training code reads, once a run by name."""

import json

import pytest
import torch
from training_scripts import adding, of_kind, plain

from flstream.client.received_values import WatchedValues
from flstream.telemetry.events import Warned

# Each site reads one value in its first task, and another one too late.
SCRIPT = plain(
    """
    if site == "site-2":
        model.meta["seen"]
    if model.current_round:
        model.meta["lr"], model.optimizer_params["momentum"]
    meta["control"] = {name: torch.zeros_like(each) for name, each in params.items()}
    params = {name: each + 1 for name, each in params.items()}
    """,
    first="metrics = {'accuracy': 0.5}",
)
FLOW = """
def flow(run):
    model = run.initial_model(control="zeros")
    for number in run.rounds():
        meta = {"lr": 0.1, "seen": 1} | ({"late": None} if number > 1 else {})
        updates = run.train(model, run.sites, meta=meta, optimizer_params={"momentum": 0.9})
        model = run.fold(model, updates, control=FoldRule())
        break_off(f"{number}")
    return model
"""


def warned(run) -> list[str]:
    return [event.message for event in of_kind(run, Warned)]


def test_each_value_that_no_site_reads_in_its_first_task_is_warned_of_once(flows):
    run = flows.broken(FLOW, "clients.parallel=1", place="1", script=SCRIPT)
    run = flows.resume(run, FLOW, "clients.parallel=1", script=SCRIPT)
    due = {
        "control": (1, "flare.ScaffoldControl"),
        "lr": (1, "model.meta['lr']"),
        "optimizer_params": (1, "model.optimizer_params"),
        "late": (2, "meta['late']"),
    }
    assert run.summary.warnings == warned(run)
    for message, (name, (number, reader)) in zip(warned(run), due.items(), strict=True):
        assert f"the workflow flow.py:flow sends {name}, and" in message
        assert f"round {number}" in message
        assert reader in message


@pytest.mark.parametrize(
    ("kind", "name", "reader"),
    [
        ("fedavg, args{fedprox_mu=10}", "fedprox_mu", "flare.proximal_term"),
        ("ditto", "ditto_lambda", "flare.own_model(net)"),
        ('fedper, args{personal=["^b$"]}', "personal", "flare.personal(net)"),
        ("feddyn", "feddyn_alpha", "flare.DynamicRegulariser"),
    ],
)
def test_a_script_without_the_line_that_a_workflow_needs_is_warned_of(jobs, kind, name, reader):
    run = jobs.run(adding({}), f"workflow={{type={kind}}}", "clients.parallel=1").finished()
    [message] = warned(run)
    assert f"sends {name}" in message
    assert f"workflow.args.{name}" in message
    assert reader in message


READS = {
    "item": lambda meta: meta["lr"],
    "get": lambda meta: meta.get("lr"),
    "pop": lambda meta: meta.pop("lr"),
    "dict": lambda meta: dict(meta),
    "json": json.dumps,
    "cleared": lambda meta: meta.without(torch.is_tensor)["lr"],
}
LOOKS = {
    "name": lambda meta: "lr" in meta,
    "truth": bool,
    "other": lambda meta: meta.get("other"),
    "cleared alone": lambda meta: meta.without(torch.is_tensor),
}


@pytest.mark.parametrize("use", [*READS.values(), *LOOKS.values()], ids=[*READS, *LOOKS])
def test_a_value_is_read_however_code_comes_by_it_but_not_looked_for(use):
    read: set[str] = set()
    use(WatchedValues({"lr": 0.1}, read.update))
    assert ("lr" in read) == (use in READS.values())
