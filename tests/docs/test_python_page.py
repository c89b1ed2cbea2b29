"""The page on Python: its programs run, in the order in which they come."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flstream import recipe
from flstream.job import load_job

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
FILES = dict(
    re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
)


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder, program):
    done = subprocess.run(
        [sys.executable, program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_recipe_runs_and_prints_where_its_result_is(folder):
    out = run(folder, "job.py")
    (made,) = (folder / "runs").glob("points-*")
    assert out.splitlines()[-1] == f"finished {made}"
    assert (made / "tensorboard").is_dir()
    resolved = load_job(made / "job.conf")
    assert (resolved.key_metric, resolved.key_metric_mode) == ("loss", "min")


@pytest.mark.nightly
def test_the_job_of_pieces_runs_and_is_exported(folder):
    run(folder, "pieces.py")
    assert load_job(folder / "jobs" / "pieces" / "job.conf").clients.names == ["ward", "clinic"]
    assert len(list((folder / "runs").glob("pieces-*/report.html"))) == 1


@pytest.mark.nightly
def test_the_loop_over_results_prints_a_line_a_run(folder):
    first, second = run(folder, "loop.py").splitlines()
    assert first.startswith("0.02 [")
    assert second.startswith("0.1 [")


def test_every_name_of_the_package_is_on_the_page():
    left_out = {"ExchangeFormat", "FrameworkType", "TransferType", "Recipe"}
    assert [name for name in recipe.__all__ if name not in PAGE and name not in left_out] == []
