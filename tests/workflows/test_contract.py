"""Promises to every workflow that has rounds, without a line of code for them."""

import re
from pathlib import Path

import pytest
from run_fixtures import MODEL
from training_scripts import adding, of_kind

from flstream.job.stage import find_workflow
from flstream.report.page import write_page
from flstream.runs.resume import plan_resume
from flstream.telemetry.events import RoundFinished
from flstream.workflows.registry import BUILT_IN

OWN = Path(__file__).parents[1] / "matrix" / "job"
ARGS = {
    "cyclic": ["workflow.args.order=random_without_same_in_a_row"],
    "fedasync": ["workflow.args.concurrency=1"],
    "fedbuff": ["time.clock=virtual"],  # by which all sites are as fast
    "fedper": ['workflow.args.personal=["^b$"]'],
}
"""Overrides of the built-in workflows that need arguments, or are held to some."""

WORKFLOWS = {
    name: ([f"workflow.type={name}", *ARGS.get(name, [])], 4)
    for name in BUILT_IN
    if find_workflow(name).args.has_rounds
} | {
    "fedasync": (["workflow.type=fedasync", *ARGS["fedasync"]], 1),
    "a file": ([f'workflow.type="{OWN / "own.py"}:odd_even"'], 4),
    "fedavg, sampled": (["workflow.type=fedavg", "clients.per_round=2"], 2),
}
"""Overrides that name each workflow, and how many of four sites are in a round's model."""

FACTORS = """
import torch


def build():
    return {"fc.lora_A.weight": torch.ones(2, 9), "fc.lora_B.weight": torch.zeros(5, 2)}
"""
"""A model for workflows of LoRA adapters."""
MODELS = dict.fromkeys(("fedex", "hlora", "flora"), FACTORS)

CURVE = [0.5, 0.7, 0.6, 0.9, 0.1]
SCRIPT = adding({}, f"{CURVE}[number - 1]")
HOW = ["clients.count=4", "rounds=5", "patience=1", "checkpoints.keep=1"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_run_ends_early_keeps_what_is_best_and_tells_of_every_round(jobs, name):
    overrides, sites = WORKFLOWS[name]
    model = MODELS.get(name, MODEL)
    run = jobs.run(SCRIPT, *HOW, *overrides, model=model).finished()
    summary, directory, rounds = run.summary, run.directory, [1, 2, 3]
    assert "has not improved on 0.7 of round 2" in summary.ended_early
    assert plan_resume(jobs.make(SCRIPT, *HOW, *overrides, model=model), directory).is_finished

    assert (summary.best.round, summary.best.value) == (2, 0.7)
    assert directory.best_model.samefile(directory.checkpoint(2))
    assert directory.final_model.samefile(directory.checkpoint(3))
    kept = list(directory.checkpoints.iterdir())
    assert {path.name.partition(".")[0] for path in kept} == {"round-0002", "round-0003"}
    # Each has its round's name, and the one that it was made with.
    steps = [path for path in kept if ".step-" in path.name]
    assert len(kept) == 2 * len(steps)
    for step in steps:
        assert step.samefile(step.with_name(re.sub(r"\.step-\d+", "", step.name)))

    assert [row["round"] for row in summary.metrics] == rounds
    assert [row["accuracy"] for row in summary.metrics] == CURVE[:3]
    assert [row.round for row in summary.rounds] == rounds
    assert all(row.train > 0 and row.checkpoint > 0 for row in summary.rounds)
    assert summary.transfer.down.bytes > summary.transfer.up.bytes > 0
    # Whoever is in a round's model has a weight in it, however many models the round has made.
    assert [len(event.weights) for event in of_kind(run, RoundFinished)] == [sites] * 3
    # A job without cross-site evaluation keeps no models of sites.
    assert not list(directory.sites.rglob("last*"))
    assert "site-4" in write_page([directory.path]).read_text()
