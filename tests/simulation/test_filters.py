"""Filters and emulated links in real runs."""

import json

import pytest
import torch
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, noisy

from flstream.job import JobError

# Trains in the memory that the model was received into, so that what it was is gone.
IN_PLACE = """
import torch
import flstream.client as flare

flare.init()
own = {
    "w": torch.zeros(300_000),
    "b": torch.full((3, 5), 9.0, dtype=torch.float64),
    "steps": torch.tensor(0),
}
while flare.is_running():
    model = flare.receive(into=own)
    assert (own["b"] == 9).all(), "b was received"
    assert "b" not in model.params
    own["w"] += 1
    own["w"][0] += 1e-3
    own["steps"] += 1
    flare.send(flare.FLModel(params=own))
"""


def test_the_change_is_filtered_also_where_code_trains_in_the_received_memory(jobs):
    up = "filters.up=[{ type = percentile_privacy, args { percentile = 0, gamma = 0.25 } }"
    up += ", { type = exclude_vars, args { exclude_vars = [b] } }]"
    down = "filters.down=[{ type = exclude_vars, args { exclude_vars = [b] } }]"
    link = "network={ up = 400 Mbit, down = 800 Mbit, latency = 3 ms }"
    run = jobs.run(IN_PLACE, up, down, link, LARGE, QUIET).finished()
    before, after = (load_file(run.directory.checkpoint(number)) for number in (0, 1))
    assert torch.equal(after["w"], (before["w"].double() + 0.25).float())
    # An excluded tensor keeps its value, and does not travel.
    assert torch.equal(after["b"], before["b"])
    assert after["steps"] == 1
    assert run.summary.transfer.up.bytes == 2 * 2 * (after["w"].nbytes + 8)
    # A site has nothing in its folder beside what its code left.
    names = {path.name for path in run.directory.site("site-1").iterdir()}
    assert not {name for name in names if "safetensors" in name or "tmp" in name}
    # The links are in the summary.
    facts = {"up": 4e8, "down": 8e8, "latency": 0.003, "jitter": 0.0, "loss": 0.0}
    network = json.loads(run.directory.summary.read_text())["network"]
    assert network == {"site-1": facts, "site-2": facts}


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_a_filter_that_does_not_fit_leaves_nothing_of_a_run(jobs, engine):
    (jobs.folder / "mine.py").write_text("class Other: ...\n")
    words = r"filters.up\[0\].type: .*functions of \(values, block\); Other lacks __call__"
    before = {*jobs.folder.parent.rglob("summary.json")}
    with pytest.raises(JobError, match=words):
        jobs.run(noisy(), 'filters.up=["mine.py:Other"]', f"engine.type={engine}", QUIET)
    assert {*jobs.folder.parent.rglob("summary.json")} == before


@pytest.mark.parametrize(
    ("setting", "does", "sentence"),
    [
        ('"mine.py:Broken"', "return values[1:]", "mine.py:Broken returned ndarray"),
        ("{ type = exclude_vars, args { exclude_vars = [nix] } }", "pass",
         "filters.up[0].args.exclude_vars: 'nix' is no tensor's name"),
        ('"mine.py:Broken"', "return values / absent",
         "mine.py:Broken raised NameError at tensor 'b': name 'absent'"),
    ],
)  # fmt: skip
def test_a_filter_that_fails_names_itself_and_the_site(jobs, setting, does, sentence):
    (jobs.folder / "mine.py").write_text(
        f"class Broken:\n    def __call__(self, values, block):\n        {does}\n"
    )
    failed = jobs.run(noisy(), f"filters.up=[{setting}]", QUIET)
    assert failed.summary.status == "failed"
    assert sentence in failed.summary.error
