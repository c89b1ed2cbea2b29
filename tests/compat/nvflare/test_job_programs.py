"""Programs of NVFlare's recipes and jobs, in NVFlare's style, run unchanged."""

import importlib.util
import json
import sys
import textwrap
from pathlib import Path

import pytest

from flstream.cli.simulate import simulate_program
from flstream.compat.nvflare.program import run_program
from flstream.errors import UsageError
from flstream.recipe import arguments
from flstream.recipe.sim_env import CommandLine

MODEL = """
import torch

class ProgramNet(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)
"""
CLIENT = """
import argparse
import nvflare.client as flare
from nvflare.client.tracking import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--step", type=float, default=1.0)
parser.add_argument("--form", default="FULL")
args = parser.parse_args()
flare.init()
writer = SummaryWriter()
while flare.is_running():
    received = flare.receive()
    before = received.params
    writer.add_scalar("step", args.step, global_step=received.current_round)
    changed = {name: value * (args.form == "FULL") + args.step for name, value in before.items()}
    metrics = {"accuracy": float(sum(value.sum() for value in before.values()))}
    flare.send(flare.FLModel(args.form, changed, metrics=metrics))
"""
RECIPE = """
import argparse
from net_of_program import ProgramNet
from nvflare.apis.dxo import DataKind
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import ProdEnv, SimEnv, add_experiment_tracking


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_clients", type=int, default=2)
    parser.add_argument("--step", default="1.0")
    parser.add_argument("--prod", action="store_true")
    parser.add_argument("--twice", action="store_true")
    args = parser.parse_args()
    recipe = FedAvgRecipe(
        name="program",
        model=ProgramNet(),
        min_clients=args.n_clients,
        num_rounds=1,
        train_script="client.py",
        train_args=f"--step {args.step}",
        aggregator_data_kind=DataKind.WEIGHTS,
        server_expected_format=ExchangeFormat.PYTORCH,
        key_metric="",
        model_persistor=None,
        launch_timeout=300.0,
        client_memory_gc_rounds=2,
    )
    recipe.enable_log_streaming()
    recipe.enable_tensor_streaming()
    recipe.add_decomposers(["mine.Own"])
    env = ProdEnv(startup_kit_location="kit", username="me") if args.prod else SimEnv(
        num_clients=args.n_clients, log_config="full"
    )
    for _ in range(1 + args.twice):
        run = recipe.execute(env)
        print("status:", run.get_status())
        print("result:", run.get_result())


if __name__ == "__main__":
    main()
"""
BY_HAND = """
from net_of_program import ProgramNet
from nvflare import FedJob
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import (
    InTimeAccumulateWeightedAggregator,
)
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.widgets.intime_model_selector import IntimeModelSelector
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver
from nvflare.job_config.script_runner import ScriptRunner

job = FedJob(name="by-hand", min_clients=2)
ids = job.to_server(PTFileModelPersistor(model=ProgramNet()), id="persistor")
job.to_server(InTimeAccumulateWeightedAggregator(expected_data_kind="WEIGHTS"), id="aggregator")
job.to_server(FullModelShareableGenerator(), id="generator")
job.to_server(
    ScatterAndGather(
        min_clients=2,
        num_rounds=1,
        start_round=0,
        wait_time_after_min_received=0,
        aggregator_id="aggregator",
        persistor_id=ids["persistor_id"],
        shareable_generator_id="generator",
        train_timeout=0,
    )
)
job.to_server(IntimeModelSelector(key_metric="accuracy"))
for site, step in (("site-1", 1.0), ("site-2", 3.0)):
    job.to(ScriptRunner(script="client.py", script_args=f"--step {step}"), site)
job.simulator_run("workspace", gpu=None, log_config="concise")
"""
NUMPY = """
import numpy as np
from nvflare.apis.job_def import JobMetaKey
from nvflare.app_common.np.recipes import NumpyCrossSiteEvalRecipe, NumpyFedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import (
    SimEnv, add_experiment_tracking, add_final_global_evaluation, set_per_site_config,
    set_recipe_meta,
)

recipe = NumpyFedAvgRecipe(
    name="arrays", initial_model=np.array([0.0, 1.0], dtype=np.float32), min_clients=2,
    num_rounds=1, train_script="client.py", params_transfer_type=TransferType.DIFF,
    launch_external_process=True, key_metric="accuracy", key_metric_mode="min",
)
set_per_site_config(recipe, {
    "site-1": {"train_args": "--form DIFF --step 1", "command": "python3 -u"},
    "site-2": {"train_args": "--form DIFF --step 5", "command": "python3 -u"},
})
assert recipe.configured_sites() == ["site-1", "site-2"]
set_recipe_meta(recipe, JobMetaKey.SCOPE, "all")
recipe.add_client_file("net_of_program.py")
recipe.add_server_file("client.py")
recipe.add_client_config({"get_task_timeout": 300}, clients=["site-1"])
add_experiment_tracking(recipe, "tensorboard", client_side=True, server_side=False)
recipe.execute(env=SimEnv(clients=recipe.configured_sites(), num_threads=2))
"""


@pytest.fixture
def simulate(tmp_path, monkeypatch, _without_pages):
    """Run a program's text inline; return its summaries."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_of_program.py").write_text(MODEL)
    (tmp_path / "client.py").write_text(CLIENT)
    arguments.notice.cache_clear()

    def simulate(program, *words, line=None, run=run_program, **settings):
        (tmp_path / "job.py").write_text(textwrap.dedent(program))
        inline = {"engine.type": "inline", **settings}
        line = line or CommandLine(inline, tmp_path / "run", quiet=True)
        monkeypatch.delitem(sys.modules, "net_of_program", raising=False)
        result = run(Path("job.py"), words, line)
        return line.summaries if run is run_program else result

    yield simulate
    sys.modules.pop("net_of_program", None)


def final(folder):
    from safetensors.numpy import load_file

    return {
        name: value.tolist() for name, value in load_file(folder / "global.safetensors").items()
    }


def test_a_recipe_runs_with_its_own_arguments_and_the_command_lines_settings(
    simulate, tmp_path, capsys
):
    words = ("--n_clients", "3", "--step", "2.0")
    line = CommandLine({"engine.type": "inline", "rounds": 2, "seed": 5}, tmp_path / "here")
    [summary] = simulate(RECIPE, *words, line=line)
    assert (summary.status, summary.rounds_completed, summary.clients) == ("finished", 2, 3)
    assert summary.seed == 5
    assert final(tmp_path / "here") == {"weight": [[4.0, 4.0]], "bias": [4.0]}
    output = capsys.readouterr().out
    assert output.startswith("job.py is a Python program: NVFlare's names in it are flstream's\n")
    assert f"status: finished\nresult: {tmp_path / 'here'}" in output
    assert importlib.util.find_spec("nvflare") is None  # the names were this run's alone


def test_a_job_by_hand_runs(simulate, tmp_path):
    [summary] = simulate(BY_HAND)
    assert summary.status == "finished", summary.error
    assert final(tmp_path / "run") == {"weight": [[2.0, 2.0]], "bias": [2.0]}


def test_arrays_differences_and_sites_of_ones_own_run(simulate, tmp_path):
    [summary] = simulate(NUMPY)
    assert summary.status == "finished", summary.error
    assert final(tmp_path / "run") == {"numpy_key": [3.0, 4.0]}


def test_a_run_is_resumed_to_more_rounds(simulate, tmp_path):
    simulate(RECIPE)
    settings = {"engine.type": "inline", "rounds": 3}
    line = CommandLine(settings, tmp_path / "run", resume=True, quiet=True)
    [summary] = simulate(RECIPE, line=line)
    assert (summary.status, summary.rounds_completed) == ("finished", 3)
    assert final(tmp_path / "run")["bias"] == [3.0]


def test_the_program_sees_how_a_run_has_failed_and_the_exit_status_tells(
    simulate, tmp_path, capsys
):
    line = CommandLine({"engine.type": "inline"}, tmp_path / "run", quiet=True)
    assert simulate(RECIPE, "--step", "nan", line=line, run=simulate_program) == 1
    printed = capsys.readouterr()
    assert "status: failed" in printed.out
    assert "error: " in printed.err


def test_with_json_stdout_is_one_document(simulate, tmp_path, capsys):
    settings = {"engine.type": "inline"}
    line = CommandLine(settings, tmp_path / "run", quiet=True, as_json=True)
    assert simulate(RECIPE, line=line, run=simulate_program) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["job"] == "program"
    assert "status: finished" in printed.err


def imports(module, name):
    return f"from nvflare.{module} import {name}\n{name}(min_clients=2)"


@pytest.mark.parametrize(
    ("program", "words", "sentence"),
    [
        (RECIPE, ["--prod"], "no ProdEnv of nvflare.recipe: .* use SimEnv"),
        (RECIPE, ["--twice"], "run is not empty"),
        ("from nvflare.recipe import PocEnv\nPocEnv()", [], "no PocEnv"),
        (imports("app_common.np.recipes.lr.fedavg", "FedAvgLrRecipe"), [], "with answer_bodies"),
        (imports("app_opt.sklearn", "KMeansFedAvgRecipe"), [], "have no mean"),
        (imports("app_opt.sklearn", "SVMFedAvgRecipe"), [], "have no mean"),
        (imports("app_opt.sklearn", "SklearnFedAvgRecipe"), [], "use NumpyFedAvgRecipe"),
        (imports("recipe.fedstats", "FedStatsRecipe"), [], "with answer_bodies"),
        (imports("collab", "CollabRecipe"), [], "a workflow of your own"),
        (imports("app_opt.flower.recipe", "FlowerRecipe"), [], "flstream simulate FOLDER"),
        ("from nvflare.recipe import Nosuch", [], "no Nosuch of nvflare.recipe: it has FedAvg"),
        ("import nvflare.nosuch", [], "has no nvflare.nosuch; docs/moving.md lists"),
        (
            "from nvflare.app_common.workflows.model_controller import ModelController\n"
            "class Mine(ModelController): ...\nMine()",
            [],
            "no ModelController of .*: it is a workflow of your own",
        ),
        ("print('nothing')", [], "has started no run"),
        ("raise SystemExit(3)", [], "ended with 3"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(simulate, program, words, sentence):
    with pytest.raises(UsageError, match=sentence):
        simulate(program, *words)


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no program .*job\.py"):
        run_program(tmp_path / "job.py", [], CommandLine(quiet=True))


PORTS = """
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv, set_per_site_config

def made(*ports, launcher="python3 -m torch.distributed.run --nproc_per_node=2"):
    recipe = FedAvgRecipe(
        name="ports", min_clients=2, num_rounds=1, train_script="client.py",
        launch_external_process=True, model={"class_path": "net_of_program.ProgramNet"},
    )
    set_per_site_config(recipe, {
        f"site-{index}": {"command": f"{launcher} {port}"} for index, port in enumerate(ports, 1)
    })
    return recipe
"""


def test_commands_of_sites_may_differ_in_the_port_alone(simulate, tmp_path):
    check = """
from pathlib import Path
job, values, _ = made("--master_port=7777", "--master_port=8888").resolve({}, Path("weights"))
assert job.train.command == "python3 -m torch.distributed.run --nproc_per_node=2", job.train
assert job.clients.site_names == ["site-1", "site-2"]
made("--nnodes=1", "--nnodes=2")
"""
    with pytest.raises(UsageError, match="give all sites one command"):
        simulate(PORTS + check)
