"""A converted job runs, to the same bits as a job of the same parts that a person wrote."""

import shutil

import pytest
from run_fixtures import INLINE

from flstream.recipe.nvflare import convert, write_job

TORCH = """
name = by-hand, rounds = 1
clients { count = 2 }
model { factory = "net:Net", args { width = 6 } }
train { script = train.py, args { lr = 0.1 }, alias = nvflare }
aggregation { exclude = [steps] }
"""


@pytest.fixture
def converted(nvflare_folders, jobs_in, tmp_path):
    """Runs the job that a folder becomes, and returns the summary."""

    def run(name, *overrides):
        write_job(convert(nvflare_folders / name), tmp_path / "converted")
        summary = jobs_in(tmp_path / "converted", engine=INLINE).run_files({}, *overrides).summary
        assert summary.status == "finished", summary.error
        assert summary.warnings == []
        return summary

    return run


def test_a_job_ends_in_the_bits_of_one_by_hand(jobs_in, nvflare_folders, converted, tmp_path):
    folder = tmp_path / "by-hand"
    shutil.copytree(nvflare_folders / "scatter_gather" / "app" / "custom", folder)
    expected = jobs_in(folder, engine=INLINE).run_files({"job.conf": TORCH}).summary
    assert expected.status == "finished", expected.error
    summary = converted("scatter_gather")
    assert summary.model.digest == expected.model.digest
    assert summary.metrics == expected.metrics


@pytest.mark.parametrize("name", ["template_fedavg", "hello_numpy", "cyclic_relay"])
def test_every_folder_runs(converted, name):
    summary = converted(name, *(["tracking.type=null"] if name == "template_fedavg" else []))
    # The scores that come with updates choose the best model.
    if name == "template_fedavg":
        assert summary.best.metric == "val_loss"
        assert summary.best.value == min(each["val_loss"] for each in summary.metrics[:-1])
