"""What a recipe or a job in Python cannot be is a sentence that names it."""

from pathlib import Path

import pytest
from recipe_support import quiet, recipe

from flstream.errors import UsageError
from flstream.recipe import (
    FedAvg,
    FedAvgRecipe,
    FedJob,
    FedOptRecipe,
    FedProxRecipe,
    Gaussian,
    PTModel,
    ScriptRunner,
    SimEnv,
    SVTPrivacy,
    add_experiment_tracking,
)


class PercentilePrivacy:
    """A class of a name that NVFlare has, which is no filter of flstream."""


def job_with(**scripts):
    """A job with a script and its arguments for each of some sites."""
    job = FedJob(name="made", min_clients=1)
    job.to_server(FedAvg(num_rounds=1))
    job.to_server(PTModel("model:Net"))
    for site, words in scripts.items():
        job.to(ScriptRunner(*words), site)
    return job


def with_arguments(text):
    return lambda: job_with(a=("client.py", text)).export_job("x")


def another_job_file():
    Path("other").mkdir()
    Path("other/job.conf").touch()
    made = recipe()
    made.job.to_clients("other/job.conf")
    made.export("x")


def with_gpus(gpu_config):
    return lambda: SimEnv(num_clients=1, gpu_config=gpu_config)


def weights_below_a_file():
    Path("file").touch()
    recipe(model=__import__("model").Net()).execute(quiet(workspace_root="file"))


SCHEDULED = {"optimizer_args": {"lr": 1}, "lr_scheduler_args": {"path": "x"}}
MISTAKES = [
    # A model.
    (lambda: recipe(model="model.pt"), "initial_ckpt"),
    (lambda: recipe(model={"Net": 3}), "class_path"),
    (lambda: recipe(model=lambda: None), "top level of a file"),
    (lambda: recipe(model=3), "give a torch module"),
    (lambda: recipe(initial_model="model:Net"), "initial_model are both given"),
    (weights_below_a_file, "initial weights cannot be written to file"),
    # Arguments of a recipe.
    (lambda: recipe(num_round=3), "no argument num_round; did you mean num_rounds"),
    (lambda: recipe(aggregator=object()), "should be 'mean', 'median', 'trimmed_mean', 'krum'"),
    (lambda: recipe().add_server_config({"chunk": 3}), "chunk is no key of a job"),
    (lambda: add_experiment_tracking(recipe(), "tensorbord"), "did you mean tensorboard"),
    (lambda: recipe(min_clients=None).export("x"), "no number of clients"),
    (lambda: recipe(min_clients=3).execute(quiet(2)), "clients.per_round: given 3"),
    (lambda: recipe(train_args="-a", config={"train.args": {}}).export("x"), "train.args"),
    (lambda: FedAvgRecipe(model="model:Net", train_args="--step 1"), "without train_script"),
    (lambda: FedProxRecipe(fedprox_mu=-1), "fedprox_mu is -1; it must be a number of at"),
    (lambda: FedOptRecipe(optimizer_args={"path": "torch.optim.Adam"}), "formulas of its own"),
    (lambda: FedOptRecipe(optimizer_args={"lr": 1, "nesterov": True}), "has no nesterov; give"),
    (lambda: FedOptRecipe(**SCHEDULED), "lr_scheduler_args has no counterpart"),
    # Where it runs.
    (lambda: recipe().execute(3), "job|env"),
    (lambda: SimEnv(), "has no clients"),
    (lambda: SimEnv(num_clients=3, clients=["a"]), "leave num_clients out"),
    (with_gpus([0]), r"gpu_config is \[0\]"),
    *((with_gpus(text), "gpu_config") for text in ("[0", "[0,1],[2", "0,,1", "[0],1", "")),
    # Parts of a job.
    (lambda: FedJob().to_clients(PercentilePrivacy()), "PercentilePrivacy has no counterpart"),
    (lambda: FedJob("it").to({"seed": 3}, "site-1"), "cannot be added to site-1"),
    (lambda: FedJob("it").to_server(ScriptRunner("client.py")), "cannot be added to server"),
    (lambda: ScriptRunner(3), "ScriptRunner: script is 3"),
    (
        lambda: job_with(a=("client.py",), b=("model.py",)).export_job("x"),
        "script client.py and model.py",
    ),
    (
        lambda: job_with(**{"site-1": ("client.py",)}).simulator_run("runs", n_clients=2),
        "has no script for site-2",
    ),
    (another_job_file, r"would both be job\.conf"),
    (with_arguments("data.csv --step 1"), "data.csv belongs to no --name"),
    (with_arguments("--step 1 --step 2"), "has --step twice"),
    (with_arguments("--step 'a"), "quoted"),
    (with_arguments("--step 1 -v"), "-v belongs to no --name"),
    # Filters.
    (lambda: recipe().add_client_output_filter(SVTPrivacy(), clients=["a"]), "single clients"),
    (lambda: recipe().add_client_input_filter(SVTPrivacy(), tasks=["validate"]), "tasks validate"),
    (lambda: recipe().add_server_input_filter(object()), r"builtins\.object is no filter here"),
    (lambda: Gaussian(sigma="a"), "sigma is 'a'"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_mistakes_are_sentences_that_name_what_is_wrong(folder, call, message):
    with pytest.raises(UsageError, match=message):
        call()
    assert not Path("x").exists() or not any(Path("x").iterdir())
