"""Patched trainers, and a loop by hand, come to the bits of the same scripts in plain processes.

There the patch is the same, without workers, streaming or a fold. What it does is tried in
test_hf_patch and test_lightning_patch.
"""

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from reference import run_reference
from safetensors.torch import load_file

from flstream.telemetry.events import SitePhaseChanged

SCRIPTS = Path(__file__).parent / "scripts"
SEED, ROUNDS = 11, 2
GPT2 = "--model_name_or_path {tiny.model} --data {tiny.data}"


class Case(NamedTuple):
    """A script in the style of an example.

    Attributes:
        script: Its name.
        factory: Code of the model's factory.
        words: Its command line.
        needs_model: Whether the factory takes the path of the pretrained model.
    """

    script: str
    factory: str
    words: str = ""
    needs_model: bool = True


CASES = {
    "lightning": Case("lightning_client", "from lit_model import LitNet as build", "", False),
    "hf sft": Case(
        "hf_client", "from hf_model import CausalLMModel as build", f"{GPT2} --train_mode sft"
    ),
    "hf peft": Case(
        "hf_client", "from hf_model import LoRAModel as build", f"{GPT2} --train_mode peft"
    ),
    "llm": Case("llm_client", "from hf_model import PrefixedModel as build", GPT2),
}


def overrides(case, tiny):
    words = case.words.format(tiny=tiny)
    model = [f"model.args.model_name_or_path={tiny.model}"] if case.needs_model else []
    return [
        f"seed={SEED}", f"rounds={ROUNDS}", "train.alias=nvflare", f'train.args="{words}"', *model
    ]  # fmt: skip


def initial_of(case, tiny):
    """The tensors that the factory makes, in a process of its own: its imports stay there."""
    args = f"{str(tiny.model)!r}" if case.needs_model else ""
    code = (
        f"import random, sys, numpy, torch; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        f"{case.factory}\n"
        f"random.seed({SEED}); numpy.random.seed({SEED}); torch.manual_seed({SEED})\n"
        f"torch.save(dict(build({args}).state_dict()), sys.argv[1])"
    )
    path = tiny.model.parent / f"initial-{random.getrandbits(32)}.pt"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def references(tmp_path_factory, tiny):
    """What each script has to come to, found once."""
    found = {}

    def reference(name):
        if name not in found:
            case = CASES[name]
            found[name] = run_reference(
                tmp_path_factory.mktemp("reference"),
                SCRIPTS / f"{case.script}.py",
                case.words.format(tiny=tiny).split(),
                initial_of(case, tiny),
                seed=SEED,
                rounds=ROUNDS,
                evaluates=False,
            )
        return found[name]

    return reference


def script_of(jobs, name):
    for path in SCRIPTS.glob("*_model.py"):
        shutil.copy(path, jobs.folder)
    return (SCRIPTS / f"{CASES[name].script}.py").read_text()


def simulated(jobs, name, tiny, *more, listener=None):
    case = CASES[name]
    how = [*overrides(case, tiny), *more]
    return jobs.run(script_of(jobs, name), *how, model=case.factory, listener=listener)


def assert_same_model(run, expected):
    final = load_file(run.directory.final_model)
    for name, tensor in final.items():
        assert torch.equal(tensor, expected.params[name]), name
    # Metrics that come with an update score the model that the site had received.
    for number, metrics in enumerate(expected.received):
        found = {key: run.summary.metrics[number][key] for key in metrics}
        assert found == pytest.approx(metrics, rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_script_runs_unchanged_to_the_same_bits(jobs, references, tiny, name):
    run = simulated(jobs, name, tiny)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.warnings == []
    assert_same_model(run, references(name))


@pytest.mark.parametrize("name", ["lightning", "hf sft", "hf peft"])
def test_sites_that_share_a_process_come_to_the_same_bits(jobs, references, tiny, name):
    run = simulated(jobs, name, tiny, "clients.parallel=1")
    assert run.summary.status == "finished", run.summary.error
    assert_same_model(run, references(name))


class KillServer:
    """Kills the server once a site trains for round 2."""

    def __init__(self, site):
        self._site = site
        self._pid = 0
        self.has_struck = False

    def __call__(self, event, sampler):
        if getattr(event, "process", "") == "server" and hasattr(event, "pid"):
            self._pid = event.pid
        if self.has_struck or not isinstance(event, SitePhaseChanged):
            return
        if (event.round, event.site, event.state) == (2, self._site, "training"):
            self.has_struck = True
            np.testing.assert_equal(self._pid > 0, True)
            subprocess.run(["kill", "-9", str(self._pid)], check=True)


@pytest.mark.parametrize("name", ["lightning", "hf sft", "hf peft"])
def test_a_run_that_is_killed_in_round_2_goes_on_to_the_same_bits(jobs, references, tiny, name):
    killer, case = KillServer("site-2"), CASES[name]
    run = simulated(jobs, name, tiny, listener=killer)
    assert killer.has_struck
    assert run.summary.status == "failed"
    assert run.summary.rounds_completed == 1
    again = jobs.go_on(run, script_of(jobs, name), *overrides(case, tiny), model=case.factory)
    assert again.summary.status == "finished", again.summary.error
    assert_same_model(again, references(name))
