"""jobs/gpt2: it learns and is exported, at any size and with an adapter."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nightly_cases import first_and_nightly
from tiny_gpt2 import opens

from flstream.inspection.export import export

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(tmp_path):
    """A copy of the job's folder, for data beside it."""
    folder = tmp_path / "gpt2"
    shutil.copytree(ROOT / "jobs" / "gpt2", folder, ignore=shutil.ignore_patterns("__py*"))
    return folder


def run_of(jobs, job, *overrides):
    return jobs._replace(folder=job).run_files({}, *overrides)


def command(*line, cwd=None):
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@first_and_nightly("more", [["train.args.max_steps=4"], []], ids=["short", "as it is"])
def test_the_job_learns_and_is_exported(jobs, job, libraries, tmp_path, more):
    summary, directory = run_of(jobs, job, *more)
    assert list(summary.failures) == list(summary.warnings) == []
    losses = [each["eval_loss"] for each in summary.metrics]
    assert len(losses) == summary.rounds_completed == 3
    assert losses[0] > losses[1] > losses[2]
    assert (summary.best.round, summary.best.metric) == (3, "eval_loss")
    assert {name for each in summary.metrics for name in each if "loss" in name} == {"eval_loss"}
    export(directory.path, tmp_path / "out")
    libraries(opens, tmp_path / "out", directory.final_model, True)


def test_a_model_that_is_neither_here_nor_on_the_hub_is_named(job):
    line = [sys.executable, "-c", "import model; model.get_model('no-such-model')"]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(line, capture_output=True, text=True, cwd=job, env=variables, check=False)
    assert "size = no-such-model: it is none of tiny, 124M, 774M" in done.stderr


def test_an_adapter_is_trained_around_the_base_and_exported(jobs, job, tmp_path):
    with_lora = ["model.args.peft=lora", "model.base=model:get_base"]
    summary, directory = run_of(jobs, job, *with_lora, "train.args.max_steps=4", "rounds=2")
    assert list(summary.failures) == list(summary.warnings) == []
    losses = [each["eval_loss"] for each in summary.metrics]
    assert losses[0] > losses[1]
    assert summary.model.bytes < 0.02 * summary.model.base_bytes
    export(directory.path, tmp_path / "out")
    assert (tmp_path / "out" / "adapter_config.json").exists()


@first_and_nightly(
    ("setting", "message"),
    [
        ("train.args.data=nowhere", "Directory"),
        (
            "model.args.size=small",
            "size = small: it is none of tiny, 124M, 774M, no folder with a model beside model.py",
        ),
        ("model.args.peft=qlora", "peft = qlora: give lora"),
    ],
)
def test_mistakes_are_sentences(jobs, job, setting, message):
    assert message in run_of(jobs, job, setting).summary.error


@pytest.mark.nightly
def test_job_py_its_export_and_the_job_file_end_in_equal_bits(jobs, job, tmp_path):
    line = [sys.executable, str(job / "job.py"), "--n_clients", "2", "--num_rounds", "2"]
    out = command(*line, "--max_steps", "2", cwd=tmp_path)
    (made,) = (tmp_path / "runs").glob("gpt2-*")
    assert f"Result can be found in : {made}" in out
    command(*line, "--max_steps", "2", "--export", "exported", cwd=tmp_path)
    digests = {json.loads((made / "summary.json").read_text())["model"]["digest"]}
    short = ["train.args.max_steps=2", "rounds=2"]
    for folder, options in ((tmp_path / "exported", []), (job, short)):
        digests.add(run_of(jobs, folder, *options).summary.model.digest)
    assert len(digests) == 1


@pytest.mark.nightly
def test_at_124m_the_adapter_takes_at_most_two_percent_of_the_bytes(job):
    line = [sys.executable, "-m", "flstream", "validate", "--json", "--set", "model.args.size=124M"]
    whole, adapter = (
        json.loads(command(*line, str(job / name))) for name in ("job.conf", "lora.conf")
    )
    assert whole["model_bytes"] == adapter["base_bytes"] == 4 * 124_439_808
    assert adapter["model_bytes"] <= 0.02 * whole["model_bytes"]


def save_texts(folder):
    from datasets import Dataset

    texts = [f"line {number} of a data set on disk" for number in range(40)]
    Dataset.from_dict({"text": texts}).save_to_disk(folder)


@pytest.mark.nightly
def test_the_job_takes_a_data_set_on_disk(jobs, job, libraries):
    libraries(save_texts, job / "texts")
    summary, _ = run_of(jobs, job, "train.args.data=texts", "rounds=1")
    assert list(summary.failures) == []
    assert summary.metrics[-1]["eval_loss"] > 0


def save_films(folder):
    """Write a data set as the cache of the hub's client has it."""
    from datasets.arrow_writer import ArrowWriter
    from datasets.info import DatasetInfo
    from datasets.splits import SplitDict, SplitInfo

    with ArrowWriter(path=str(folder / "imdb-train.arrow")) as writer:
        for number in range(40):
            writer.write({"text": f"film {number} is good", "label": 1})
        size = writer.finalize()[::-1]
        features = writer._features
    train = SplitInfo("train", *size, dataset_name="imdb")
    info = DatasetInfo(features=features, splits=SplitDict({"train": train}), version="0.0.0")
    info.config_name, info.dataset_name = "plain_text", "imdb"
    info.write_to_directory(str(folder))


@pytest.mark.nightly
def test_the_job_takes_a_model_and_a_data_set_of_the_hub_by_name(libraries, tiny, tmp_path):
    model, films = tmp_path / "hub" / "models--gpt2", tmp_path / "datasets" / "imdb"
    commit = "a" * 40
    shutil.copytree(tiny, model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    films = films / "plain_text" / "0.0.0" / commit
    films.mkdir(parents=True)
    libraries(save_films, films)
    settings = ["model.args.size=gpt2", "train.args.dataset=imdb", "train.args.max_steps=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    line = [sys.executable, "-m", "flstream", "simulate", str(ROOT / "jobs" / "gpt2"), *words]
    own = {"HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": str(tmp_path / "datasets")}
    variables = {**os.environ, **own, "HF_HUB_OFFLINE": "1"}
    line += ["-r", "1", "--json", "--run-dir", "run"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout)
    assert summary["model"]["tensors"] == 28
    assert summary["best"]["metric"] == "eval_loss"
    assert (tmp_path / "run" / "sites" / "site-1" / "work" / "results" / "site-1").exists()
