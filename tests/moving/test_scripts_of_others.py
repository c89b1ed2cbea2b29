"""Scripts in the style of NVFlare's examples, unchanged, come to the reference's bits."""

import random
import runpy
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from reference import SITES, run_reference
from safetensors.torch import load_file

from flstream.telemetry.events import SiteLog, decode_event

SCRIPTS = Path(__file__).parent / "scripts"
SEED, ROUNDS = 11, 2
NETWORK = "from network import Network as build"
ARRAY = "import numpy as np\ndef build(): return {'numpy_key': np.arange(6.0).reshape(2, 3)}"


class Case(NamedTuple):
    """A script, its model's factory, keys of the job, and its command line in a plain process."""

    script: str
    model: str
    overrides: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


ARRAYS = ("train.exchange_format=numpy",)
DIFF = (*ARRAYS, "train.args.update_type=diff")
FLAGS = ("train.args={ lr = 0.05, shuffle = true, sizes = [4, 8] }", 'train.args.title="two words"')
CASES = {
    "pytorch": Case(
        *("pytorch_client.py", NETWORK, FLAGS),
        ("--lr=0.05", "--shuffle", "--sizes", "4", "8", "--title", "two words"),
    ),
    "numpy": Case("numpy_client.py", ARRAY, ARRAYS),
    "numpy diff": Case("numpy_client.py", ARRAY, DIFF, ("--update_type", "diff")),
}


def initial_of(case):
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    if case.model == ARRAY:
        return {"numpy_key": np.arange(6.0).reshape(2, 3)}
    return runpy.run_path(str(SCRIPTS / "network.py"))["Network"]().state_dict()


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_script_runs_unchanged_to_the_same_bits(jobs, tmp_path, name):
    case = CASES[name]
    evaluates = case.model == NETWORK
    how = {"seed": SEED, "rounds": ROUNDS, "evaluates": evaluates}
    (tmp_path / "plain").mkdir()
    script = SCRIPTS / case.script
    expected = run_reference(tmp_path / "plain", script, case.words, initial_of(case), **how)

    shutil.copy(SCRIPTS / "network.py", jobs.folder)
    words = "train.alias=nvflare", f"seed={SEED}", f"rounds={ROUNDS}", *case.overrides
    run = jobs.run(script.read_text(), *words, model=case.model)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.warnings == []
    final = load_file(run.directory.final_model)
    assert final.keys() == expected.params.keys()
    for tensor in final:
        assert torch.equal(final[tensor], expected.params[tensor]), tensor
    # Metrics that came with round n's updates are the score of the model of the round before.
    assert run.summary.evaluate == ("task" if evaluates else "received")
    scores = {each["round"]: each for each in run.summary.metrics}
    due = expected.scores if evaluates else expected.received
    for number, metrics in enumerate(due, start=int(evaluates)):
        assert {key: scores[number][key] for key in metrics} == pytest.approx(metrics, rel=1e-6)
    events = map(decode_event, run.directory.events.read_bytes().splitlines())
    logged = [each for each in events if isinstance(each, SiteLog)]
    for site in SITES:
        found = [(each.key, each.value, each.step) for each in logged if each.site == site]
        assert found == expected.logged[site]
    if evaluates:
        files = [run.directory.site(site) / "work" / "local_model.pt" for site in SITES]
        first, second = (torch.load(path, weights_only=True) for path in files)
        assert not torch.equal(first["0.weight"], second["0.weight"])
