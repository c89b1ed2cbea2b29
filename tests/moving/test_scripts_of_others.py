"""Scripts in the style of NVFlare's examples, unchanged, come to the reference's bits."""

import random
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from nightly_cases import first_and_nightly
from reference import SITES, run_reference
from safetensors.torch import load_file

from flstream.telemetry.events import SiteLog, decode_event

SCRIPTS = Path(__file__).parent / "scripts"
SEED, ROUNDS = 11, 2
NETWORK = "from network import Network as build"
ARRAY = "import numpy as np\ndef build(): return {'numpy_key': np.arange(6.0).reshape(2, 3)}"


class Case(NamedTuple):
    """A script, and what the reference has to know of it.

    Attributes:
        model: Code of the model's factory.
        overrides: Keys of the job.
        words: Its command line in the plain processes.
        evaluates: Whether it tells evaluations apart.
        needs_nvflare: Whether it imports more of NVFlare than the client API.
    """

    model: str = NETWORK
    overrides: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    evaluates: bool = False
    needs_nvflare: bool = False


ARRAYS = ("train.exchange_format=numpy",)
CASES = {
    "numpy_client": Case(ARRAY, ARRAYS, needs_nvflare=True),
    "numpy_client diff": Case(
        ARRAY, (*ARRAYS, "train.args.update_type=diff"), ("--update_type", "diff"), False, True
    ),
    "pytorch_client": Case(evaluates=True),
    "scheduler_client": Case(needs_nvflare=True),
    "fedprox_client": Case(needs_nvflare=True),
    "tensorboard_client": Case(),
    "flags_client": Case(
        NETWORK,
        (
            "train.args={ lr = 0.05, epochs = 2, shuffle = true, verbose = false }",
            "train.args.sizes=[4, 8]",
            'train.args.title="two words"',
        ),
        (
            "--lr=0.05", "--epochs=2", "--shuffle", "--sizes", "4", "8", "--title", "two words",
        ),
    ),
}  # fmt: skip


def initial_of(case):
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    if case.model == ARRAY:
        return {"numpy_key": np.arange(6.0).reshape(2, 3)}
    return load_network().state_dict()


def load_network():
    names: dict[str, object] = {}
    exec((SCRIPTS / "network.py").read_text(), names)
    return names["Network"]()


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """What each script has to come to, found once."""
    found = {}

    def reference(name):
        if name not in found:
            case, script = CASES[name], SCRIPTS / f"{name.split()[0]}.py"
            folder = tmp_path_factory.mktemp("reference")
            found[name] = run_reference(
                folder,
                script,
                case.words,
                initial_of(case),
                seed=SEED,
                rounds=ROUNDS,
                evaluates=case.evaluates,
            )
        return found[name]

    return reference


def simulated(jobs, name, *overrides, change=lambda text: text):
    case = CASES[name]
    for module in ("images.py", "network.py"):
        shutil.copy(SCRIPTS / module, jobs.folder)
    script = change((SCRIPTS / f"{name.split()[0]}.py").read_text())
    how = f"seed={SEED}", f"rounds={ROUNDS}", *case.overrides, *overrides
    run = jobs.run(script, *how, model=case.model)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.warnings == []
    return run


def assert_the_same(run, expected, case):
    final = load_file(run.directory.final_model)
    assert final.keys() == expected.params.keys()
    for name, tensor in final.items():
        assert torch.equal(tensor, expected.params[name]), name
    # Metrics that came with round n's updates are the score of the model of the round before.
    scores = {each["round"]: each for each in run.summary.metrics}
    due = expected.scores if case.evaluates else expected.received
    assert len(due) == ROUNDS
    for place, metrics in enumerate(due):
        number = place + 1 if case.evaluates else place
        found = {key: scores[number][key] for key in metrics}
        assert found == pytest.approx(metrics, rel=1e-12)
    assert run.summary.evaluate == ("task" if case.evaluates else "received")


def assert_logged(run, expected):
    events = map(decode_event, run.directory.events.read_bytes().splitlines())
    logged = [each for each in events if isinstance(each, SiteLog)]
    for site in SITES:
        found = [(each.key, each.value, each.step) for each in logged if each.site == site]
        assert found == expected.logged[site]


@pytest.mark.nightly
@first_and_nightly("name", CASES, brief=1)
def test_a_script_runs_unchanged_to_the_same_bits(jobs, references, name):
    run = simulated(jobs, name, "train.alias=nvflare")
    assert_the_same(run, references(name), CASES[name])
    assert_logged(run, references(name))


def with_our_import(text):
    text = text.replace("import nvflare.client as flare", "import flstream.client as flare")
    text = text.replace(
        "from nvflare.client.tracking import", "from flstream.client.tracking import"
    )
    assert not re.search(r"^(from|import) nvflare", text, flags=re.MULTILINE)
    return text


@pytest.mark.nightly
@first_and_nightly("name", [each for each in CASES if not CASES[each].needs_nvflare])
def test_a_script_with_only_its_import_changed_comes_to_the_same_bits(jobs, references, name):
    run = simulated(jobs, name, change=with_our_import)
    assert_the_same(run, references(name), CASES[name])


def test_each_site_has_its_own_local_files(jobs):
    run = simulated(jobs, "pytorch_client", "train.alias=nvflare")
    models = [
        torch.load(run.directory.site(site) / "work" / "local_model.pt", weights_only=True)
        for site in SITES
    ]
    assert not torch.equal(models[0]["fc.weight"], models[1]["fc.weight"])
