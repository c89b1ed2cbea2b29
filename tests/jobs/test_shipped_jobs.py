"""The jobs that ship with the project do what they say, through the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

JOBS = Path(__file__).parents[2] / "jobs"


def simulate(job, folder, *options):
    command = ["simulate", str(JOBS / job / "job.conf"), "--run-dir", str(folder), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "flstream", *command, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_digits_learns_to_read_them(tmp_path):
    summary = simulate("digits", tmp_path / "run")
    assert summary["status"] == "finished"
    assert summary["rounds_completed"] == 10
    assert summary["metrics"][-1]["accuracy"] >= 0.93
    assert summary["best"]["metric"] == "accuracy"
    assert summary["best"]["value"] == max(row["accuracy"] for row in summary["metrics"])
    assert set(summary["memory"]["clients"]) == {f"site-{number}" for number in range(1, 9)}


@pytest.mark.nightly
@pytest.mark.parametrize("size", ["4MiB", "1MB"])
def test_exchange_adds_the_mean_of_the_sites_numbers_every_round(size, tmp_path):
    options = ["--set", f"model.args.size={size}", "--set", "clients.count=4"]
    summary = simulate("exchange", tmp_path / "run", *options)
    assert summary["model"]["bytes"] == {"4MiB": 4 << 20, "1MB": 1_000_000}[size]
    weights = load_file(tmp_path / "run" / "global.safetensors")
    assert all(bool((tensor == 3 * 2.5).all()) for tensor in weights.values())


@pytest.mark.nightly
def test_byzantine_learns_though_three_of_ten_sites_attack(tmp_path):
    summary = simulate("byzantine", tmp_path / "run")
    assert summary["metrics"][-1]["accuracy"] >= 0.9


@pytest.mark.nightly
def test_private_learns_something_and_says_what_it_spends(tmp_path):
    options = ["--set", "rounds=4", "--set", "clients.count=20"]
    summary = simulate("private", tmp_path / "run", *options)
    epsilons = [each["epsilon"] for each in summary["rounds"]]
    assert len(epsilons) == 4
    assert epsilons == sorted(epsilons)
    assert summary["metrics"][-1]["accuracy"] > 0.1
    page = (tmp_path / "run" / "report.html").read_text()
    assert "clipping norm" in page
    assert f"{epsilons[-1]:.4g}" in page
