"""Scripts in the style of NVFlare's examples, unchanged, come to the reference's bits."""

import random
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import SITES, run_reference
from safetensors.torch import load_file
from support import assert_same_tensors
from training_scripts import of_kind

from flstream.telemetry.events import SiteLog

SCRIPTS = Path(__file__).parent / "scripts"
SEED, ROUNDS = 11, 2
FLAGS = ("train.args={ lr = 0.05, shuffle = true, sizes = [4, 8] }", 'train.args.title="two words"')
WORDS = ("--lr=0.05", "--shuffle", "--sizes", "4", "8", "--title", "two words")


@pytest.mark.nightly
def test_a_script_runs_unchanged_to_the_same_bits(jobs, tmp_path):
    script = SCRIPTS / "pytorch_client.py"
    (tmp_path / "plain").mkdir()
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(SEED)
    initial = runpy.run_path(str(SCRIPTS / "network.py"))["Network"]().state_dict()
    expected = run_reference(tmp_path / "plain", script, WORDS, initial, seed=SEED, rounds=ROUNDS)

    shutil.copy(SCRIPTS / "network.py", jobs.folder)
    how = "train.alias=nvflare", f"seed={SEED}", f"rounds={ROUNDS}", *FLAGS
    model = "from network import Network as build"
    run = jobs.run(script.read_text(), *how, model=model)
    assert run.summary.status == "finished", run.summary.error
    assert (run.summary.warnings, run.summary.evaluate) == ([], "task")
    assert_same_tensors(load_file(run.directory.final_model), expected.params)
    scores = {each["round"]: each for each in run.summary.metrics}
    for number, metrics in enumerate(expected.scores, start=1):
        assert {key: scores[number][key] for key in metrics} == pytest.approx(metrics, rel=1e-6)
    for site in SITES:
        logged = [each for each in of_kind(run, SiteLog) if each.site == site]
        assert [(each.key, each.value, each.step) for each in logged] == expected.logged[site]
