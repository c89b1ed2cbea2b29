"""The jobs that ship with the project do what they say."""

from pathlib import Path

import pytest
from run_fixtures import INLINE
from safetensors.torch import load_file

from flstream.job import load_job
from flstream.report.page import write_page
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def run(tmp_path):
    """Run a job, and return its summary and its directory."""

    def run(name, *overrides):
        directory = RunDirectory.create(name, tmp_path / "run")
        summary = simulate(load_job(JOBS / name / "job.conf", overrides), directory)
        assert summary.status == "finished", summary.error
        return summary, directory

    return run


@pytest.mark.nightly
def test_digits_learns_to_read_them(run):
    summary, _ = run("digits", *INLINE)
    assert summary.metrics[-1]["accuracy"] >= 0.93
    assert summary.best.value == max(row["accuracy"] for row in summary.metrics)


@pytest.mark.parametrize("size", ["4MiB", "1MB"])
def test_exchange_adds_the_mean_of_the_sites_numbers_every_round(run, size):
    summary, directory = run("exchange", *INLINE, f"model.args.size={size}", "clients.count=4")
    assert summary.model.bytes == {"4MiB": 4 << 20, "1MB": 1_000_000}[size]
    weights = load_file(directory.final_model)
    assert all(bool((tensor == 3 * 2.5).all()) for tensor in weights.values())


@pytest.mark.nightly
def test_byzantine_learns_though_three_of_ten_sites_attack(run):
    summary, _ = run("byzantine", *INLINE)
    assert summary.metrics[-1]["accuracy"] >= 0.9


@pytest.mark.nightly
def test_private_learns_something_and_says_what_it_spends(run):
    summary, directory = run("private", *INLINE, "rounds=4", "clients.count=20")
    epsilons = [each.epsilon for each in summary.rounds]
    assert len(epsilons) == 4
    assert epsilons == sorted(epsilons)
    assert summary.metrics[-1]["accuracy"] > 0.1
    page = write_page([directory.path]).read_text()
    assert "clipping norm" in page
    assert f"{epsilons[-1]:.4g}" in page


@pytest.mark.nightly
def test_a_thousand_sites_in_two_processes_learn_to_read_digits(run):
    summary, directory = run("virtual", "rounds=6", "workflow.args.evaluate_every=6")
    assert set(summary.memory.clients) == {"worker-1", "worker-2"}
    assert summary.metrics[-1]["accuracy"] > 0.8
    shapes = {name: each.shape for name, each in load_file(directory.final_model).items()}
    assert shapes == {"weight": (64, 10), "bias": (10,)}
