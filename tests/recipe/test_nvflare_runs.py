"""A converted job runs, to the same bits as a job of the same parts that a person wrote."""

import pytest

from flstream.recipe import FedAvgRecipe, SimEnv
from flstream.recipe.nvflare import convert, write_job

TORCH = """
name = by-hand, rounds = 1
clients { count = 2 }
model { factory = "net:Net", args { width = 6 } }
train { script = train.py, args { lr = 0.1 }, alias = nvflare }
aggregation { exclude = [steps] }
"""
NUMPY = """
name = by-hand, rounds = 1
clients { count = 2 }
model { factory = "model:build" }
train { script = add.py, alias = nvflare, exchange_format = numpy }
"""
MODEL = """
import numpy as np

def build():
    return {"numpy_key": np.array([[1, 2], [3, 4]], dtype=np.float32)}
"""


@pytest.fixture
def converted(nvflare_folders, jobs_in, tmp_path):
    """Runs the job that a folder becomes, and returns the summary."""

    def run(name, *overrides, to="converted"):
        write_job(convert(nvflare_folders / name), tmp_path / to)
        summary = jobs_in(tmp_path / to).run_files({}, *overrides).summary
        assert summary.status == "finished", summary.error
        assert summary.warnings == []
        return summary

    return run


def code_of(folder):
    custom = folder / "app" / "custom"
    return {path.name: path.read_text() for path in custom.rglob("*.py")}


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [("scatter_gather", {"job.conf": TORCH}), ("hello_numpy", {"job.conf": NUMPY})],
)
def test_a_converted_job_ends_in_the_bits_of_one_by_hand(
    jobs_in, nvflare_folders, converted, tmp_path, name, by_hand
):
    folder = tmp_path / "by-hand"
    folder.mkdir()
    files = {**by_hand, **code_of(nvflare_folders / name), "model.py": MODEL}
    if name == "hello_numpy":
        # Where a person would put it: beside the script.
        files["add.py"] = files["add.py"].replace("from src.step", "from step")
    expected = jobs_in(folder).run_files(files).summary
    assert expected.status == "finished", expected.error
    summary = converted(name)
    assert summary.model.digest == expected.model.digest
    assert summary.metrics == expected.metrics


def test_the_scores_that_come_with_updates_choose_the_best_model(converted):
    summary = converted("template_fedavg", "tracking.type=null")
    losses = [each["val_loss"] for each in summary.metrics[:-1]]
    assert losses == sorted(losses, reverse=True)
    assert summary.best.metric == "val_loss"
    assert summary.best.value == losses[-1]


@pytest.mark.nightly
def test_sites_have_the_arguments_and_factors_of_their_apps(converted):
    own = converted("two_apps", to="a")
    assert own.clients == 3
    alike = converted("two_apps", "clients.args.site-ward-1.epochs=1", to="b")
    unweighted = converted("two_apps", "aggregation.weights={}", to="c")
    assert len({each.model.digest for each in (own, alike, unweighted)}) == 3


def test_a_cyclic_job_hands_its_model_on(converted):
    summary = converted("cyclic_relay")
    assert summary.rounds_completed == 2


@pytest.mark.nightly
def test_recipe_exported_folder_and_converted_folder_end_in_equal_bits(
    jobs_in, nvflare_folders, converted, tmp_path, monkeypatch
):
    code = tmp_path / "code"
    code.mkdir()
    for name, text in code_of(nvflare_folders / "scatter_gather").items():
        (code / name).write_text(text)
    monkeypatch.chdir(code)
    recipe = FedAvgRecipe(
        min_clients=2,
        num_rounds=1,
        model={"class_path": "net.Net", "args": {"width": 6}},
        train_script="train.py",
        train_args="--lr 0.1",
        exclude_vars="steps",
    )
    run = recipe.execute(SimEnv(num_clients=2, quiet=True))
    exported = jobs_in(recipe.export("exported")).run_files({}).summary
    summary = converted("scatter_gather")
    assert {exported.model.digest, summary.model.digest} == {run.digest}
