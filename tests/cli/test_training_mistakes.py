"""Mistakes of single sites, in a round that goes on without them: a sentence each, no traceback."""

import json
import re

import pytest

JOB = """
name = mistakes, seed = 7, rounds = 1
clients { count = %d, min_updates = 1, parallel = 2, bench_after = 0 }
model { factory = "model:build" }
train { script = client.py }
workflow { args { evaluate_every = 0 } }
"""

MODEL = """
import torch

def build():
    return {"w": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)}
"""

CLIENT = """
import json
import numpy as np
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    params, metrics, meta = model.params, {"loss": 0.5}, {"num_examples": 3}
    for each in params.values():
        each += 1
    place = flare.system_info()["site_index"]
    if place:
        exec(MISTAKES[place - 1])
    flare.send(flare.FLModel(params=params, metrics=metrics, meta=meta))
"""

MISTAKES = {
    # Weights.
    "meta['num_examples'] = 1e308": "meta['num_examples'] is 1e+308, and an update's weight is a",
    "meta['num_examples'] = 0": "meta['num_examples'] is 0, and an update's weight is",
    "meta = {'NUM_STEPS_CURRENT_ROUND': 1e16}": "meta['NUM_STEPS_CURRENT_ROUND'] is 1e+16, and an",
    "params['b'][1] = 1e300; meta['num_examples'] = 1e9": "tensor 'b' at [1], times the weight",
    # Metrics.
    "metrics['loss'] = {'mean': 0.5}": "the metric 'loss' is a dict that is no number; send one",
    "metrics['loss'] = torch.zeros(2)": "the metric 'loss' is a Tensor of shape [2] that is no num",
    "metrics['loss'] = 10**400": "the metric 'loss' is an int that no float can hold; send one",
    "metrics[5] = 0.5": "ClientError: 5 cannot name a metric, since it is no string; rename it",
    # The call, and the tensors.
    "flare.send(5)": "ClientError: send() was given a int; give it an FLModel, such as FLModel(par",
    "params[5] = params['w']": "LayoutError: 5 cannot name a tensor, since it is no string; rename",
    "params['w'] = [1.0, 2.0, 3.0]": "LayoutError: 'w' is a list, not a tensor or array; send only",
    "model.metrics = 5; flare.send(model)": "FLModel(metrics=...) was given a int; give it numb",
    "flare.FLModel(params, 'HALF')": "ValueError: params_type is 'HALF'; give it FULL or DIFF",
}
SOUND = [
    "meta['num_examples'] = 1e15",
    "meta['num_examples'] = np.float32(1e-15); meta['num_examples'] *= 1.01",
    "metrics = {'loss': np.float32(0.5), 'f': torch.tensor([0.5]), 'b': True, 'n': float('nan')}",
    "meta = None",
]


@pytest.mark.usefixtures("_without_pages")
def test_a_mistake_fails_its_site_alone_in_a_sentence_and_the_round_goes_on(
    flstream_here, tmp_path
):
    mistakes = [*MISTAKES, *SOUND]
    (tmp_path / "job.conf").write_text(JOB % (len(mistakes) + 1))
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "client.py").write_text(f"MISTAKES = {mistakes!r}\n{CLIENT}")
    done = flstream_here("simulate", "job.conf", "--json", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rounds_completed"] == 1
    reasons = {each["site"]: each["reason"] for each in summary["failures"]}
    # The first site makes no mistake.
    expected = {f"site-{place}": words for place, words in enumerate(MISTAKES.values(), 2)}
    assert reasons.keys() == expected.keys()
    for site, words in expected.items():
        assert words in reasons[site]
        assert re.match(r"client\.py, line \d+ raised|the update of ", reasons[site])
    # Scalars of NumPy and torch are metrics, and have a mean with large weights. The script trains
    # in every task, so what it sends scores the model that it had received.
    scores = summary["metrics"][0]
    assert [scores[name] for name in ("round", "loss", "f", "b", "n")] == [0, 0.5, 0.5, 1.0, None]
