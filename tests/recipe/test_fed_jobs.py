"""FedJob: what can be added to it, and what it says of the rest."""

import pytest

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.recipe import (
    FedAvg,
    FedJob,
    IntimeModelSelector,
    PTFedAvg,
    PTModel,
    ScriptRunner,
)
from flstream.recipe.nvflare import COMPONENTS


def test_the_documents_job_snippet_runs_once_it_has_a_script(folder):
    from model import Net as MyLargeModel

    job = FedJob(name="pt-fedavg")
    # TensorDownloader is automatically enabled
    # Model can be class instance or dict config
    controller = PTFedAvg(
        num_clients=2,
        num_rounds=10,
        model=MyLargeModel(),
    )
    job.to(controller, "server")
    with pytest.raises(
        UsageError, match=r"the job pt-fedavg has 1 mistake:\n  train.script: missing"
    ):
        job.simulator_run("runs", n_clients=2)
    (folder / "labels.txt").write_text("a b c")
    job.to_clients("labels.txt")
    job.to_clients(ScriptRunner("client.py"))
    assert (job.export_job("jobs") / "labels.txt").read_text() == "a b c"
    run = job.simulator_run("runs", n_clients=2)
    assert (run.get_status(), run.summary.rounds_completed) == ("finished", 10)


def test_the_documents_settings_of_a_job_are_taken(folder):
    job = FedJob(name="my_job")
    # Add config to server (these are server-side only settings)
    sizes = ("np_download_chunk_size", "tensor_download_chunk_size")
    job.to_server({**dict.fromkeys(sizes, 2097152), "streaming_per_request_timeout": 600})
    job.to_server(dict.fromkeys(sizes, 0))
    with pytest.raises(
        UsageError, match=r"(?s)rounds: missing.*model.factory: missing.*train.script: missing"
    ):
        job.export_job("jobs")
    job.to_server(PTModel("model:Net"))
    job.to_server(FedAvg(num_clients=2, num_rounds=1))
    job.to_clients(ScriptRunner("client.py"))
    loaded = load_job(job.export_job("jobs") / "job.conf")
    assert loaded.streaming.tensor_download_chunk_size == 0
    assert loaded.streaming.streaming_per_request_timeout == 600


def test_sites_that_are_addressed_are_the_jobs_sites(folder):
    job = FedJob(name="cifar")
    job.to(FedAvg(num_clients=2, num_rounds=1), "server")
    job.to(PTModel({"class_path": "model.Net", "args": {}}), "server")
    job.to_server(IntimeModelSelector("error", negate_key_metric=True))
    for site, step in (("north", 1), ("south", 3)):
        job.to(ScriptRunner("client.py", f"--step {step}"), site)
        job.to(COMPONENTS["CellPipe"](mode="PASSIVE"), site)
    folder = job.export_job("jobs")
    assert folder.name == "cifar"
    loaded = load_job(folder / "job.conf")
    assert loaded.clients.names == ["north", "south"]
    assert loaded.clients.args == {"north": {"step": "1"}, "south": {"step": "3"}}
    assert (loaded.key_metric, loaded.key_metric_mode) == ("error", "min")
