"""Recipes: the documents' snippets run, and end in the bits of a job file."""

import json
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from pyhocon import ConfigFactory
from recipe_support import quiet, recipe, resolved
from run_fixtures import INLINE
from safetensors.torch import load_file

from flstream.errors import UsageError
from flstream.job import JobError, load_job
from flstream.recipe import (
    CyclicRecipe,
    FedEvalRecipe,
    FedOptRecipe,
    FedProxRecipe,
    NumpyFedAvgRecipe,
    RunFailedError,
    RunResult,
    ScaffoldRecipe,
    SwarmLearningRecipe,
    TensorClientStreamer,
    TensorServerStreamer,
    TransferType,
    add_cross_site_evaluation,
    add_experiment_tracking,
)
from flstream.runs.resume import plan_resume
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate

SNIPPET = """
from model import Net as MyLargeModel

from flstream.recipe import FedAvgRecipe
from flstream.recipe import SimEnv

# TensorDownloader is automatically used - no configuration needed
# Model can be class instance or dict config
# For pre-trained weights: initial_ckpt="/server/path/to/pretrained.pt"
recipe = FedAvgRecipe(
    name="my-fedavg-job",
    min_clients=2,
    num_rounds=10,
    model=MyLargeModel(),  # Even multi-GB models work efficiently
    train_script="client.py",
)
env = SimEnv(num_clients=2)
run = recipe.execute(env)
"""


def test_the_documents_recipe_snippet_runs_with_its_imports_changed(folder, write, capsys):
    run = runpy.run_path(str(write("job.py", SNIPPET)))["run"]
    assert run.directory.name.startswith("my-fedavg-job-")
    assert (run.get_status(), run.summary.rounds_completed) == ("finished", 10)
    assert "round 10 of 10: done" in capsys.readouterr().out


def test_recipe_exported_folder_and_job_by_hand_end_in_equal_bits(folder, write, jobs_in):
    made = recipe(model={"class_path": "model.build", "args": {"width": 3}}, config={"seed": 7})
    run = made.execute(quiet())
    assert run.get_status() == "finished"
    exported = made.export("exported")
    assert sorted(path.name for path in exported.iterdir()) == ["client.py", "job.conf", "model.py"]
    by_hand = """
    name = by-hand, seed = 7, rounds = 2
    clients { count = 2 }
    model { factory = "model:build", args { width = 3 } }
    train { script = client.py }
    """
    for place, files in ((exported, {}), (folder, {"job.conf": by_hand})):
        again = jobs_in(place, engine=INLINE).run_files(files)
        assert again.summary.model.digest == run.digest

    opened = RunResult(run.directory)
    assert (opened.digest, opened.metrics) == (run.digest, run.metrics)
    assert "finished after 2 rounds" in repr(opened)
    with pytest.raises(UsageError, match="not the directory of a run"):
        RunResult("exported")
    run.model.unlink()
    with pytest.raises(UsageError, match=r"global.safetensors cannot be read .*checkpoints"):
        run.load()


def kept_by(run):
    return load_file(run.directory / "checkpoints" / "round-0000.safetensors")


def same(tensors, net):
    return all(torch.equal(tensors[name], value) for name, value in net.state_dict().items())


def test_an_instance_keeps_its_weights_and_goes_on_from_its_job_file(folder):
    from model import Net

    torch.manual_seed(1)
    net, other = Net(), Net()
    run = recipe(model=net).execute(quiet())
    assert same(kept_by(run), net)
    # The same weights are written once, whatever the number of runs.
    whole = recipe(model=net, num_rounds=3).execute(quiet())
    assert len(list((folder / "runs" / "models").iterdir())) == 1
    job = load_job(run.directory / "job.conf", ["rounds=3"])
    directory = RunDirectory.reopen("small", run.directory)
    with directory.in_use():
        more = simulate(job, directory, resume=plan_resume(job, directory))
    assert more.model.digest == whole.digest
    # A checkpoint's weights take the place of an instance's.
    torch.save(other.state_dict(), "pretrained.pt")
    assert same(kept_by(recipe(model=net, initial_ckpt="pretrained.pt").execute(quiet())), other)
    named = recipe(initial_ckpt="pretrained.pt")
    assert same(kept_by(named.execute(quiet())), other)
    assert (named.export("exported") / "pretrained.pt").exists()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: __import__("model").Net, "Net"),
        (lambda: __import__("model").build, "build"),
        (lambda: "model:Net", "Net"),
        (lambda: {"path": "model.Net"}, "Net"),
        (lambda: {"class_path": "model.Net", "args": {"width": 3}}, "Net"),
    ],
)
def test_a_factory_may_be_given_in_any_of_its_spellings(folder, model, name):
    assert resolved(recipe(model=model())).model.factory == f"{folder}/exported/model.py:{name}"


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({"key_metric": "eval_loss"}, "min"),
        ({"key_metric": "error", "stop_cond": "error < 0.1"}, "min"),
        ({"key_metric": "loss", "stop_cond": "loss >= 3"}, "max"),
        ({"stop_cond": "loss < 0.1"}, "max"),
    ],
)
def test_a_key_metric_is_minimised_where_its_name_or_the_condition_says_so(folder, given, mode):
    assert resolved(recipe(**given)).key_metric_mode == mode


TRAIN = {"alias": "nvflare", "script": "client.py"}
TRIMMED = {"type": "trimmed_mean", "args": {"trim": 0.2}}
LOSS = {"key_metric": "loss", "key_metric_mode": "min"}
WAITS = {"start_task_timeout": 60, "progress_timeout": 3600}
SCORES = {"eval_task_timeout": 300, "submit_model_timeout": 600}
ADAM = {"type": "fedadam", "args": {"learning_rate": 0.5}}
SGD = {"path": "torch.optim.SGD", "args": {"lr": 0.5, "momentum": 0.6}}
# Recipes with arguments, and keys that they become beside those of a plain job.
ARGUMENTS = [
    (
        recipe,
        {"key_metric": "loss", "stop_cond": "loss < 0.1", "patience": 3, "exclude_vars": "bias"},
        {
            "stop_when": "loss < 0.1",
            "patience": 3,
            "workflow": {
                "type": "fedavg",
                "args": {"key_metric": "loss", "key_metric_mode": "min"},
            },
            "aggregation": {"exclude": ["bias"]},
        },
    ),
    (
        recipe,
        {
            "aggregation_weights": {"site-1": 2.0},
            "server_optimizer": ADAM,
            "train_args": "--step 2",
        },
        {
            "aggregation": {"weights": {"site-1": 2.0}},
            "server_optimizer": {"type": "fedadam", "args": {"learning_rate": 0.5}},
            "train": {**TRAIN, "args": "--step 2"},
        },
    ),
    (
        recipe,
        {"config": {"seed": 7, "train.alias": None}, "framework": "numpy", "initial_ckpt": "a.npz"},
        {
            "seed": 7,
            "model": {"factory": "model:Net", "initial": "a.npz"},
            "train": {**TRAIN, "alias": None, "exchange_format": "numpy"},
        },
    ),
    (
        recipe,
        {"launch_external_process": True, "command": "torchrun --nproc_per_node=2"},
        {"train": {**TRAIN, "command": "torchrun --nproc_per_node=2"}},
    ),
    (
        recipe,
        {"aggregator": TRIMMED},
        {"aggregation": {"method": "trimmed_mean", "args": {"trim": 0.2}}},
    ),
    (recipe, {"params_transfer_type": TransferType.DIFF, "command": "python3 -u"}, {}),
    (
        FedOptRecipe,
        {"optimizer_args": SGD},
        {
            "server_optimizer": {"type": "fedavgm", "args": {"learning_rate": 0.5, "beta_1": 0.6}},
            "workflow": {"type": "fedavg", "args": {}},
        },
    ),
    (
        FedOptRecipe,
        {"optimizer_args": {"lr": 0.7, "momentum": 0.9, "nesterov": True}},
        {
            "server_optimizer": {"type": "nesterov", "args": {"learning_rate": 0.7, "beta_1": 0.9}},
            "workflow": {"type": "fedavg", "args": {}},
        },
    ),
    (FedProxRecipe, {}, {"workflow": {"type": "fedavg", "args": {"fedprox_mu": 0.01}}}),
    (ScaffoldRecipe, {}, {"workflow": {"type": "scaffold", "args": {}}}),
    (
        CyclicRecipe,
        {"order": "RANDOM"},
        {"workflow": {"type": "cyclic", "args": {"order": "random"}}},
    ),
    (
        SwarmLearningRecipe,
        {"do_cross_site_eval": True, "start_task_timeout": 60, "key_metric": "loss"},
        {
            "workflow": [
                {"type": "swarm", "args": {**WAITS, **LOSS}},
                {"type": "cross_site", "args": {**LOSS, **SCORES}},
            ]
        },
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "keys"), ARGUMENTS)
def test_arguments_of_recipes_become_keys_of_the_job(folder, kind, arguments, keys):
    np.savez("a.npz", **{"0.weight": np.ones((3, 2))})
    plain = {"model": "model:Net", "min_clients": 2, "num_rounds": 2, "train_script": "client.py"}
    made = kind(**{**plain, **arguments})
    job_file = made.export("exported") / "job.conf"
    values = ConfigFactory.parse_file(job_file).as_plain_ordered_dict()
    assert values == {
        "name": made.name,
        "rounds": 2,
        "clients": {"count": 2, "per_round": 2},
        "model": {"factory": "model:Net"},
        "train": TRAIN,
        "workflow": {"type": "fedavg", "args": {}},
        **keys,
    }


def test_an_environment_and_settings_of_the_server_become_keys_of_the_job(folder):
    made = recipe(min_clients=1, config={"clients.round_timeout": "5 s"})
    made.add_server_config({"tensor_download_chunk_size": 1 << 20, "checkpoints.keep": 2})
    add_experiment_tracking(made, tracking_type="tensorboard")
    job = resolved(made, quiet(0, clients=["a", "b"], num_threads=1, gpu_config="[0,1],[2]"))
    assert (job.clients.names, job.clients.parallel) == (["a", "b"], 1)
    assert job.clients.gpus == ["0,1", "2"]
    assert (job.clients.per_round, job.clients.round_timeout) == (1, 5.0)
    assert job.streaming.tensor_download_chunk_size == 1 << 20
    assert job.tracking.type == "tensorboard"


LEARNER = """
import flstream.client as flare


class Mover(flare.Learner):
    def __init__(self, step):
        self.step = step

    def train(self, model):
        moved = {name: each + self.step for name, each in model.params.items()}
        return flare.FLModel(params=moved)

    def evaluate(self, model):
        return flare.FLModel(metrics={"loss": 1.0})
"""


def test_a_recipe_runs_a_learner_named_by_its_place_or_its_class(folder, write):
    write("moving.py", LEARNER)
    moved = []
    for learner in ("moving:Mover", __import__("moving").Mover):
        how = {"train_script": None, "learner": learner, "train_args": {"step": 2}}
        run = recipe(**how).execute(quiet())
        after, before = run.load(), kept_by(run)
        moved.append({name: float((after[name] - before[name]).mean()) for name in after})
    assert moved[0] == moved[1]
    assert all(value == pytest.approx(4, abs=1e-5) for value in moved[0].values())


def test_sites_may_have_arguments_and_weights_of_their_own(folder):
    made = recipe(num_rounds=1, train_args="--step 1", aggregation_weights={"a": 3.0})
    made.set_per_site_config({"a": {"train_args": "--step 3 --examples 3"}})
    run = made.execute(quiet(0, clients=["a", "b"]))
    before, after = kept_by(run), run.load()
    # (factor 3 x 3 examples x step 3 + 1 x 1 x 1) / (9 + 1)
    assert all(torch.allclose(after[name], before[name] + 2.8) for name in before)
    with pytest.raises(
        UsageError, match="a has train_script; sites have their own train_args alone"
    ):
        made.set_per_site_config({"a": {"train_script": "other.py"}})


NUMPY = """
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants

flare.init()
while flare.is_running():
    model = flare.receive()
    array = model.params[NPConstants.NUMPY_KEY]
    model.params[NPConstants.NUMPY_KEY] = array + 1
    flare.send(flare.FLModel(params=model.params, metrics={"sum": float(array.sum())}))
"""


def test_the_numpy_recipe_trains_an_array_or_nested_lists(folder, write):
    write("client.py", NUMPY)
    given = [[1, 2, 3], [4, 5, 6]]
    for model in (given, np.array(given, dtype=np.float32)):
        how = {"min_clients": 2, "num_rounds": 3, "model": model, "train_script": "client.py"}
        after = NumpyFedAvgRecipe(name="hello-numpy", **how).execute(quiet()).load()["numpy_key"]
        assert after.tolist() == (np.array(given) + 3).tolist()


def test_streamers_and_unneeded_arguments_say_so_once(folder, capsys):
    made = recipe(cuda_empty_cache=True)
    for _ in range(2):
        made.enable_tensor_streaming()
        made.job.to_server(TensorServerStreamer(), "tensor_server_streamer")
        made.job.to_clients(TensorClientStreamer(), "tensor_client_streamer")
    made.add_client_config({"get_task_timeout": 300})
    out = capsys.readouterr().out
    assert out.count("tensor_streaming is not needed") == 1
    assert "cuda_empty_cache is not needed" in out
    assert "get_task_timeout is not needed" in out


def test_a_failed_run_raises_with_the_run(folder, write):
    write("client.py", "raise ValueError('no data here')")
    with pytest.raises(RunFailedError, match="no data here") as error:
        recipe().execute(quiet())
    assert error.value.run.get_status() == "failed"
    assert error.value.run.directory.is_dir()


def test_an_export_never_replaces_what_is_not_its_own(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("notes")
    with pytest.raises(UsageError, match="mine is not empty; name a new folder"):
        recipe().export("mine")
    assert os.listdir("mine") == ["notes.txt"]
    first, second = (recipe(num_rounds=rounds).export("exported") for rounds in (2, 5))
    assert first == second
    # One that fails leaves the one before as it was.
    with pytest.raises(JobError, match="patience"):
        recipe(patience=0).export("exported")
    assert load_job(second / "job.conf").rounds == 5
    assert not list(folder.glob(".export-*"))


@pytest.mark.nightly
def test_ctrl_c_of_a_recipe_ends_the_program_and_keeps_the_rounds(folder, write, python):
    write(
        "job.py",
        """
        import os, signal, threading
        from pathlib import Path
        from flstream.recipe import FedAvgRecipe, SimEnv

        made = FedAvgRecipe(
            min_clients=1, num_rounds=100000, model="model:Net", train_script="client.py"
        )

        def interrupt():
            while not list(Path("runs").glob("*/checkpoints/round-0003.safetensors")):
                pass
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        made.execute(SimEnv(num_clients=1))
        print("not reached")
        """,
    )
    (folder / "elsewhere").mkdir()
    # Scripts are found beside the program from any working folder.
    done = python(folder / "job.py", cwd=folder / "elsewhere")
    assert done.returncode == -2 or "KeyboardInterrupt" in done.stderr
    assert "not reached" not in done.stdout
    (run,) = Path("elsewhere/runs").glob("fedavg-*")
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"


def test_cross_site_evaluation_is_added_to_a_recipe_and_its_model_is_evaluated_alone(folder):
    made = recipe(num_rounds=1, key_metric="loss")
    add_cross_site_evaluation(made, submit_model_timeout=30, validation_timeout=40)
    first, second = resolved(made).stages
    assert (first.type, second.type) == ("fedavg", "cross_site")
    assert (second.args.submit_model_timeout, second.args.eval_task_timeout) == (30, 40)
    with pytest.raises(UsageError, match="once, after training"):
        add_cross_site_evaluation(made)
    model = recipe(num_rounds=1).execute(quiet()).directory / "global.safetensors"
    alone = FedEvalRecipe(eval_ckpt=model, eval_script="client.py", min_clients=2)
    assert resolved(alone).stages[0].type == "evaluate"


def test_what_is_set_later_replaces_another_type_and_loses_nothing_else(folder):
    made = recipe(
        key_metric="loss",
        optimizer_args={"lr": 0.5, "momentum": 0.9},
        per_site_config={"a": {"train_args": "--prefix ''"}, "b": {"train_args": "--flag"}},
    )
    made.configure({"workflow": "swarm", "server_optimizer": {"type": "fedadam"}})
    add_cross_site_evaluation(made)
    made.to_server(__import__("model").Net())
    job = resolved(made)
    assert [stage.type for stage in job.stages] == ["swarm", "cross_site"]
    assert (job.key_metric, job.key_metric_mode) == ("loss", "min")
    assert job.clients.args == {"a": {"prefix": ""}, "b": {"flag": True}}
    assert job.server_optimizer.args.learning_rate == 0.1
    assert (job.model.factory, job.model.initial.name) == (None, "model.safetensors")
    made.configure({"workflow": [{"type": "fedavg"}]})
    with pytest.raises(UsageError, match="a list of workflows; put cross_site at its end"):
        made.export("again")
