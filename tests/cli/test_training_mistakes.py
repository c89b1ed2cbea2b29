"""Mistakes of single sites, in a round that goes on without them: a sentence each, no traceback."""

import json
import re
import subprocess
import sys

import pytest
from cli_support import environment
from nightly_cases import first_and_nightly

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
    "meta['num_examples'] = 1e308": (
        "ClientError: meta['num_examples'] is 1e+308, and an update's weight is a number from "
        "1e-15 to 1e+15; send the number of examples"
    ),
    "meta['num_examples'] = float('nan')": "meta['num_examples'] is nan, and an update's weight",
    "meta['num_examples'] = float('inf')": "meta['num_examples'] is inf, and an update's weight",
    "meta['num_examples'] = -3": "meta['num_examples'] is -3, and an update's weight is",
    "meta['num_examples'] = 0": "meta['num_examples'] is 0, and an update's weight is",
    "meta['num_examples'] = True": "meta['num_examples'] is a bool that is no number; send the",
    "meta['num_examples'] = '12'": "meta['num_examples'] is a str that is no number; send the",
    "meta = {'NUM_STEPS_CURRENT_ROUND': 1e16}": "meta['NUM_STEPS_CURRENT_ROUND'] is 1e+16, and an",
    "params['b'][1] = 1e300; meta['num_examples'] = 1e9": (
        "cannot be added up: tensor 'b' at [1], times the weight 1e+09, is more than a float64"
    ),
    # Metrics.
    "metrics['loss'] = {'mean': 0.5}": (
        "ClientError: the metric 'loss' is a dict that is no number; send one, such as loss.item()"
    ),
    "metrics['loss'] = torch.zeros(2)": "the metric 'loss' is a Tensor of shape [2] that is no num",
    "metrics['loss'] = '0.5'": "the metric 'loss' is a str that is no number; send one, such as",
    "metrics['loss'] = 1j": "the metric 'loss' is a complex that is no number; send one, such as",
    "metrics['loss'] = None": "the metric 'loss' is a NoneType that is no number; send one, such",
    "metrics['loss'] = [0.5]": "the metric 'loss' is a list that is no number; send one, such as",
    "metrics['loss'] = 10**400": "the metric 'loss' is an int that no float can hold; send one",
    "metrics[5] = 0.5": "ClientError: 5 cannot name a metric, since it is no string; rename it",
    # The call, and the tensors.
    "flare.send(None)": "ClientError: send() was given a NoneType; give it an FLModel, such as",
    "flare.send(5)": "ClientError: send() was given a int; give it an FLModel, such as FLModel(par",
    "params[5] = params['w']": "LayoutError: 5 cannot name a tensor, since it is no string; rename",
    "params['w'] = 5": "LayoutError: 'w' is a int, not a tensor or array; send only tensors in par",
    "params['w'] = None": "LayoutError: 'w' is a NoneType, not a tensor or array; send only ten",
    "params['w'] = [1.0, 2.0, 3.0]": "LayoutError: 'w' is a list, not a tensor or array; send only",
    "model.metrics = 5; flare.send(model)": (
        "ClientError: FLModel(metrics=...) was given a int; give it numbers by name, such as"
    ),
    "model.params = 5; flare.send(model)": "FLModel(params=...) was given a int; give it tensors b",
    "flare.FLModel(params, 'HALF')": "ValueError: params_type is 'HALF'; give it FULL or DIFF",
}
SOUND = [
    "meta['num_examples'] = 1e15",
    "meta['num_examples'] = np.float32(1e-15); meta['num_examples'] *= 1.01",
    "metrics = {'loss': np.float32(0.5), 'f': torch.tensor([0.5]), 'b': True, 'n': float('nan')}",
    "meta = None",
]


def site_of(place):
    return f"site-{place + 2}"  # the first makes no mistake


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    """What comes of a run in which each site but the first makes a mistake of its own."""
    folder = tmp_path_factory.mktemp("mistakes")
    mistakes = [*MISTAKES, *SOUND]
    (folder / "job.conf").write_text(JOB % (len(mistakes) + 1))
    (folder / "model.py").write_text(MODEL)
    (folder / "client.py").write_text(f"MISTAKES = {mistakes!r}\n{CLIENT}")
    done = subprocess.run(
        [sys.executable, "-m", "flstream", "simulate", "job.conf", "--json", "--run-dir", "run"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return json.loads(done.stdout)


@first_and_nightly(("place", "mistake"), list(enumerate(MISTAKES)), brief=13)
def test_a_mistake_fails_its_site_alone_in_a_sentence(summary, place, mistake):
    [reason] = [each["reason"] for each in summary["failures"] if each["site"] == site_of(place)]
    assert MISTAKES[mistake] in reason
    assert re.match(r"client\.py, line \d+ raised|the update of ", reason)


def test_the_round_goes_on_with_the_others(summary):
    assert summary["rounds_completed"] == 1
    assert {each["site"] for each in summary["failures"]} == set(map(site_of, range(len(MISTAKES))))


def test_scalars_of_numpy_and_torch_are_metrics_and_have_a_mean_with_large_weights(summary):
    # The script trains in every task, so what it sends scores the model that it had received.
    scores = summary["metrics"][0]
    assert [scores[name] for name in ("round", "loss", "f", "b", "n")] == [0, 0.5, 0.5, 1.0, None]


LONG = "raise ValueError('begin ' + 'x' * 5000 + ' end')"


def longest(text):
    return max(map(len, text.splitlines()))


@first_and_nightly(("least", "code"), [(1, 0), (2, 1)], ids=["others go on", "the run fails of it"])
def test_a_long_exception_is_shown_in_part_and_is_whole_in_the_log(
    flstream, write_job, tmp_path, least, code
):
    job = write_job(f"if flare.get_site_name() == 'site-2': {LONG}")
    done = flstream("simulate", job, "--run-dir", "run", "--set", f"clients.min_updates={least}")
    assert done.returncode == code
    part = r"site-2(:| failed:) client\.py, line \d+ raised ValueError: begin x+ \[\.\.\.\] x+ end"
    assert re.search(part, done.stdout)
    assert (re.search(part, done.stderr) is not None) == bool(code)
    assert longest(done.stdout) < 500
    assert longest(done.stderr or "-") < 600
    assert "begin " + "x" * 5000 + " end" in (tmp_path / "run/sites/site-2/log.txt").read_text()


@pytest.mark.nightly
@first_and_nightly("command", ["validate", "simulate"])
def test_a_long_exception_of_a_factory_is_shown_in_part(flstream, write_job, command):
    job = write_job()
    (job.parent / "model.py").write_text(f"def build():\n    {LONG}\n")
    done = flstream(command, job)
    assert done.returncode == {"validate": 2, "simulate": 1}[command]
    assert re.search(r"raised ValueError: begin x+ \[\.\.\.\] x+ end \(", done.stderr)
    assert longest(done.stderr + done.stdout) < 1500
