"""Mistakes in a recipe or a job in Python are sentences that name them."""

from pathlib import Path

import pytest
from recipe_support import quiet, recipe

from flstream.errors import UsageError
from flstream.recipe import (
    FedAvg,
    FedJob,
    FedOptRecipe,
    Gaussian,
    PTModel,
    ScriptRunner,
    SimEnv,
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


def exported(change):
    def export():
        job = recipe()
        change(job)
        job.export("x")

    return export


def add_another_job_file(job):
    Path("other").mkdir()
    Path("other/job.conf").touch()
    job.to_clients("other/job.conf")


def with_gpus(gpu_config):
    return lambda: recipe().export("x", SimEnv(num_clients=2, gpu_config=gpu_config))


def weights_below_a_file():
    Path("file").touch()
    recipe(model=__import__("model").Net()).execute(quiet(workspace_root="file"))


MISTAKES = [
    # A model.
    (lambda: recipe(model="model.pt"), "initial_ckpt"),
    (lambda: recipe(model={"Net": 3}), "class_path"),
    (lambda: recipe(model=lambda: None), "top level of a file"),
    (lambda: recipe(model=3), "give a torch module"),
    (weights_below_a_file, "initial weights cannot be written to file"),
    # Arguments of a recipe.
    (lambda: recipe(num_round=3), "num_round is 3: .*; did you mean num_rounds"),
    (lambda: recipe(min_clients=3).execute(quiet(2)), "\n  min_clients: given 3; must be at most"),
    (lambda: recipe(optimizer_args=3), "optimizer_args is 3"),
    (lambda: recipe(per_site_config={"a": 3}), "FedJob.set_per_site_config: config is 3"),
    (lambda: recipe(config=3), "FedJob.configure: settings is 3"),
    (lambda: FedOptRecipe(optimizer_args={"lr": 1, "dampening": 1}), "dampening of torch"),
    (lambda: FedOptRecipe(optimizer_args={"path": "torch.optim.Adam"}), "Adam has no counterpart"),
    (lambda: FedOptRecipe(lr_scheduler_args={}), "lr_scheduler_args is {}: there is no such"),
    # Keys that they become.
    *(
        (lambda wrong=wrong: recipe(**wrong).export("x"), message)
        for wrong, message in (
            ({"aggregator": "medain"}, 'method: given "medain"; must be .*median'),
            ({"config": {"aggregation.methud": 3}}, "did you mean aggregation.method"),
            ({"config": {"train": 3}}, "train: given 3; must be a section"),
            ({"key_metric": 3, "stop_cond": 3}, "(?s)stop_cond: given 3.*key_metric: given 3"),
            ({"learner": "client:Own"}, '\n  learner: given "client:Own"'),
            ({"fedprox_mu": -1}, "\n  fedprox_mu: given -1; must be a number"),
            (
                {"aggregator": object()},
                "aggregator is .*: an object of object; write",
            ),
            ({"patience": "soon"}, '\n  patience: given "soon"; must be a whole number'),
            ({"train_script": 3}, '\n  train_script: given "3"; must be the path'),
            ({"min_clients": None}, "clients.count: missing"),
            ({"model": None, "train_script": None}, "(?s)model.factory: m.*train.script: m"),
        )
    ),
    # Where it runs.
    (lambda: recipe().execute(3), "Recipe.execute: env is 3"),
    (lambda: recipe().export(None), "Recipe.export: job_dir is None"),
    (lambda: recipe().export(), "Recipe.export: missing a required argument: 'job_dir'"),
    (lambda: SimEnv(clients="ab"), "SimEnv: clients is 'ab'"),
    (lambda: SimEnv(num_client=2), "SimEnv: got an unexpected keyword argument 'num_client'"),
    (lambda: add_experiment_tracking(3, "mlflow"), "add_experiment_tracking: recipe is 3"),
    (exported(lambda job: add_experiment_tracking(job, "mflow")), "type: given .*mean mlflow"),
    (lambda: recipe().execute(quiet(3, clients=["a"])), "\n  num_clients: given 3; must be the"),
    (with_gpus([0]), r"SimEnv: gpu_config is \[0\]"),
    *((with_gpus(text), "\n  gpu_config: ") for text in ("[0", "[0,1],[2", "0,,1", "[0],1", "")),
    # Parts of a job.
    (lambda: FedJob().to_clients(PercentilePrivacy()), "PercentilePrivacy has no counterpart"),
    (lambda: FedJob("it").to({"seed": 3}, "site-1"), "cannot be added to site-1"),
    (lambda: FedJob("it").to_server(ScriptRunner("client.py")), "cannot be added to server"),
    (
        lambda: job_with(a=("client.py",), b=("model.py",)).export_job("x"),
        "train_script of b is model.py, and that of others client.py",
    ),
    (exported(add_another_job_file), r"would both be job\.conf"),
    (with_arguments("data.csv --step 1"), "data.csv belongs to no --name"),
    (with_arguments("--step 1 --step 2"), "--step belongs to no --name, or comes twice"),
    (with_arguments("--step 'a"), "quoted"),
    (with_arguments("--step 1 -v"), "-v belongs to no --name"),
    (exported(lambda job: job.set_arguments({"train_args": {1: 2}})), "train.args"),
    (lambda: recipe(train_args={"a": b"x"}).export("x"), "a bytes is no value of a job file"),
    (lambda: recipe(do_cross_site_eval=[1]), r"do_cross_site_eval is \[1\]: .* boolean"),
    (lambda: recipe(framework="jax"), "framework is 'jax': .*'pytorch'"),
    (lambda: recipe(train_args="--a \ud800").export("x"), "x cannot be written: .*surrogates"),
    (lambda: recipe().export("a\0b"), "cannot be written: .*null"),
    # Filters.
    (lambda: recipe().add_client_output_filter("svt_privacy", clients=["a"]), "of all sites"),
    (lambda: recipe().add_client_input_filter("gaussian", tasks=["test"]), "tasks .'test'"),
    (lambda: recipe().add_server_input_filter(object()), "filter is <object object"),
    (exported(lambda job: job.add_client_output_filter(Gaussian(-1))), "sigma: given -1"),
    (lambda: Gaussian("a"), "Gaussian: sigma is 'a'"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_mistakes_are_sentences_that_name_what_is_wrong(folder, call, message):
    with pytest.raises(UsageError, match=message):
        call()
    assert not Path("x").exists() or not any(Path("x").iterdir())
