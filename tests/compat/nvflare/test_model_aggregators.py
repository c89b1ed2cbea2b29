"""Programs with aggregators of their own that are derived from NVFlare's base class."""

import subprocess
import sys
import textwrap

import pytest
from safetensors.numpy import load_file

from flstream.compat.nvflare.program import run_program
from flstream.errors import UsageError
from flstream.recipe.sim_env import CommandLine

AGGREGATORS = """
import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator


class Middle(ModelAggregator):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale
        self.models = []

    def accept_model(self, model):
        self.info(f"has {len(self.models)}")
        assert model.params_type == ParamsType.FULL
        self.models.append(model.params)

    def aggregate_model(self):
        params = {
            name: self.scale * np.median(np.stack([model[name] for model in self.models]), axis=0)
            for name in self.models[0]
        }
        return FLModel(params=params)

    def reset_stats(self):
        self.models = []


class Weighted(ModelAggregator):
    def __init__(self):
        super().__init__()
        self.reset_stats()

    def accept_model(self, model):
        assert model.params_type == ParamsType.DIFF
        weight = model.meta["NUM_STEPS_CURRENT_ROUND"]
        assert model.meta["client_name"].startswith("site-")
        for name, value in model.params.items():
            zero = value.new_zeros(value.shape)
            self.sums[name] = self.sums.get(name, zero) + weight * value
        self.weight += weight

    def aggregate_model(self):
        params = {name: value / self.weight for name, value in self.sums.items()}
        return FLModel(params=params, params_type=ParamsType.DIFF)

    def reset_stats(self):
        self.sums, self.weight = {}, 0.0


class Lossy(Middle):
    def __init__(self, secret):
        super().__init__()
        self.kept = secret


class Fewer(Middle):
    def aggregate_model(self):
        return FLModel(params={"first": np.zeros(3)})
"""
CLIENT = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    number = int(flare.get_site_name()[5:])
    params = {name: value + number**2 for name, value in model.params.items()}
    flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": number}))
"""
PROGRAM = """
import numpy as np
from own_aggregators import Fewer, Lossy, Middle, Weighted
from nvflare.app_common.np.recipes import NumpyFedAvgRecipe
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.recipe import SimEnv

recipe = NumpyFedAvgRecipe(
    name="own", min_clients=3, num_rounds=2, train_script="client.py",
    initial_model={{"first": np.zeros(3, np.float32), "second": np.ones((2, 2))}},
    {arguments}
)
recipe.execute(SimEnv(num_clients=3))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write the program of a recipe with these arguments; return its path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_aggregators.py").write_text(AGGREGATORS)
    (tmp_path / "client.py").write_text(CLIENT)

    def write(arguments):
        (tmp_path / "job.py").write_text(textwrap.dedent(PROGRAM).format(arguments=arguments))
        return tmp_path / "job.py"

    yield write
    sys.modules.pop("own_aggregators", None)


def run(path, **settings):
    line = CommandLine({"engine.type": "inline", **settings}, path.parent / "run", quiet=True)
    [summary] = run_program(path, (), line).summaries
    return summary


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ("aggregator=Middle()", 4.0 + 4.0),
        ("aggregator=Middle(scale=0.5)", (4.0 / 2 + 4.0) / 2),
        (
            "aggregator=Weighted(), params_transfer_type=TransferType.DIFF, "
            "server_expected_format=ExchangeFormat.PYTORCH",
            2 * (1 + 8 + 27) / 6,
        ),
    ],
    ids=["median", "argument", "differences"],
)
def test_whole_models_are_combined_by_an_object_of_the_programs_own(program, arguments, first):
    path = program(arguments)
    summary = run(path)
    assert summary.status == "finished", summary.error
    tensors = load_file(path.parent / "run" / "global.safetensors")
    assert tensors["first"].tolist() == [first] * 3
    assert tensors["second"].dtype == "float64"


@pytest.mark.usefixtures("_without_pages")
def test_processes_have_the_names_of_its_base_class(program):
    path = program("aggregator=Middle()")
    line = [sys.executable, "-m", "flstream", "simulate", "job.py", "-q", "--run-dir", "run"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    tensors = load_file(path.parent / "run" / "global.safetensors")
    assert tensors["first"].tolist() == [8.0] * 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("aggregator=Lossy(1)", "no attribute secret .* keep it as self.secret"),
        ("aggregator=Middle", "object of a class derived from ModelAggregator"),
    ],
)
def test_an_object_that_cannot_be_made_anew_is_refused(program, arguments, reason):
    with pytest.raises(UsageError, match=reason):
        run(program(arguments))


def test_a_combination_of_other_tensors_fails_the_run(program):
    summary = run(program("aggregator=Fewer()"))
    assert summary.status == "failed"
    assert "Fewer.combine returned tensors first for the group 'model'" in summary.error
