"""Filters, rules that compare updates, and emulated links in real runs."""

import json

import torch
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, noisy

# Trains in the memory that the model was received into, so that what it was is gone.
IN_PLACE = """
import torch
import flstream.client as flare

flare.init()
own = {
    "w": torch.zeros(%d),
    "b": torch.full((3, 5), 9.0, dtype=torch.float64),
    "steps": torch.tensor(0),
}
while flare.is_running():
    model = flare.receive(into=own)
    assert (own["b"] == 9).all(), "b was received"
    assert "b" not in model.params
    kind = flare.ParamsType.%s
    if kind == "FULL":
        own["w"] += 1
        own["w"][0] += 1e-3
        own["steps"] += 1
        flare.send(flare.FLModel(params=own))
    else:
        change = torch.ones(%d)
        change[0] += 1e-3
        flare.send(flare.FLModel(params={"w": change}, params_type=kind, meta={"partial": True}))
"""


@first_and_nightly("kind", ["FULL", "DIFF"])
def test_the_change_is_filtered_also_where_code_trains_in_the_received_memory(jobs, kind):
    script = IN_PLACE % (300_000, kind, 300_000)
    up = "filters.up=[{ type = percentile_privacy, percentile = 0, gamma = 0.25 }"
    up += ", { type = exclude_vars, exclude_vars = [b] }]"
    down = "filters.down=[{ type = exclude_vars, exclude_vars = [b] }]"
    link = "network={ up = 400 Mbit, down = 800 Mbit, latency = 3 ms }"
    run = jobs.run(script, up, down, link, LARGE, QUIET)
    assert run.summary.status == "finished", run.summary.error
    before, after = (load_file(run.directory.checkpoint(number)) for number in (0, 1))
    assert torch.equal(after["w"], (before["w"].double() + 0.25).float())
    # An excluded tensor keeps its value, and does not travel.
    assert torch.equal(after["b"], before["b"])
    assert after["steps"] == (1 if kind == "FULL" else 0)
    if kind == "FULL":
        assert run.summary.transfer.up.bytes == 2 * 2 * (after["w"].nbytes + 8)
    # A site has nothing in its folder beside what its code left.
    names = {path.name for path in run.directory.site("site-1").iterdir()}
    assert not {name for name in names if "safetensors" in name or "tmp" in name}
    # The links are in the summary.
    facts = {"up": 4e8, "down": 8e8, "latency": 0.003, "jitter": 0.0, "loss": 0.0}
    network = json.loads(run.directory.summary.read_text())["network"]
    assert network == {"site-1": facts, "site-2": facts}


@first_and_nightly(
    ("setting", "does", "sentence"),
    [
        ('"mine.py:Broken"', "return values[1:]", "mine.py:Broken returned ndarray"),
        ("{ type = exclude_vars, exclude_vars = [nix] }", "pass",
         "filters.up[0].exclude_vars: 'nix' is no tensor's name"),
        ('"mine.py:Broken"', "return values / absent",
         "mine.py:Broken raised NameError at tensor 'b': name 'absent'"),
        ('"mine.py:Broken"', "raise SystemExit(3)",
         "mine.py:Broken raised SystemExit at tensor 'b': 3; mend"),
    ],
    brief=2,
)  # fmt: skip
def test_a_filter_that_fails_names_itself_and_the_site(jobs, setting, does, sentence):
    (jobs.folder / "mine.py").write_text(
        f"class Broken:\n    def __call__(self, values, block):\n        {does}\n"
    )
    failed = jobs.run(noisy(), f"filters.up=[{setting}]", QUIET)
    assert failed.summary.status == "failed"
    assert sentence in failed.summary.error


# One site is far off, and one sends no numbers at all.
ATTACKED = noisy("""
if site == "site-3":
    params = {name: -100 * tensor for name, tensor in params.items()}
if site == "site-5" and number == 1:
    params["w"][7] = float("nan")
""")
OWN = """
import numpy as np


class Median:
    def weigh(self, gram, weights):
        return np.diagonal(gram) < 4 * np.median(np.diagonal(gram))

    def fold(self, values, weights):
        return np.median(values, axis=0)
"""


@first_and_nightly("method", ["own.py:Median", "krum", "geometric_median"])
def test_a_robust_rule_stays_near_the_others_where_sites_attack(jobs, method):
    (jobs.folder / "own.py").write_text(OWN)
    how = ["clients.count=8", "clients.min_updates=7", f'aggregation.method="{method}"', QUIET]
    run = jobs.run(ATTACKED, *how)
    [failed] = run.summary.failures
    assert (failed.site, failed.round) == ("site-5", 1)
    assert "the update of site-5 is not finite: tensor 'w' at [7] is nan" in failed.reason
    model = load_file(run.directory.final_model)
    assert all(tensor.abs().max() < 20 for tensor in model.values())


def test_too_few_updates_for_a_rule_end_the_run_with_what_is_needed(jobs):
    script = noisy('if site != "site-1":\n    raise KeyError("oops")')
    how = ["clients.count=3", "clients.min_updates=1", QUIET, "aggregation.method=krum"]
    run = jobs.run(script, *how)
    assert run.summary.status == "failed"
    assert "krum needs 3 or more updates where 0 of them may be Byzantine, and there are 1" in (
        run.summary.error
    )
