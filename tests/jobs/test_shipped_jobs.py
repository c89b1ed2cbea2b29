"""The jobs that ship with the project do what they say."""

import re
import shutil
from pathlib import Path

import pytest
from nightly_cases import first_and_nightly
from run_fixtures import INLINE
from safetensors.torch import load_file

from flstream.job import load_job
from flstream.report.page import write_page
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate

JOBS = Path(__file__).parents[2] / "jobs"


def variants_of(job):
    """Name and commented lines of each variant that a job file has."""
    text = (JOBS / job / "job.conf").read_text()
    return re.findall(r"^# (\w+): .*\n((?:# \S+ [={].*\n)+)", text, re.MULTILINE)


VARIANTS, OF_DILOCO = variants_of("digits"), variants_of("diloco")


@pytest.fixture
def run(tmp_path):
    """Run a job, and return its summary and its directory."""

    def run(name, *overrides):
        directory = RunDirectory.create(name, tmp_path / "run")
        summary = simulate(load_job(JOBS / name / "job.conf", overrides), directory)
        assert summary.status == "finished", summary.error
        return summary, directory

    return run


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


def test_the_variants_of_digits_are_these():
    names = "swarm cross_site evaluator scaffold feddyn ditto fedper private"
    assert [name for name, _ in VARIANTS] == names.split()


def uncommented(job, lines, folder):
    """A copy of a job in which these lines count."""
    text = (JOBS / job / "job.conf").read_text()
    path = folder / job / "job.conf"
    shutil.copytree(JOBS / job, path.parent)
    path.write_text(text.replace(lines, lines.replace("# ", "")))
    return path


@first_and_nightly(
    ("name", "lines"), VARIANTS, brief=len(VARIANTS) - 1, ids=[name for name, _ in VARIANTS]
)
def test_a_variant_of_digits_runs_once_its_lines_are_uncommented(name, lines, tmp_path):
    if name == "private":
        pytest.importorskip("dp_accounting")
    path = uncommented("digits", lines, tmp_path)
    few = [] if name == "private" else ["clients.count=2", "train.args.batch_size=64"]
    job = load_job(path, [*INLINE, "rounds=1", "train.args.epochs=1", *few])
    assert name in (job.stages[-1].type, "private", "evaluator")
    assert job.is_scored_centrally == (name == "evaluator")
    directory = RunDirectory.create(name, tmp_path / "run")
    summary = simulate(job, directory)
    assert (summary.status, list(summary.warnings)) == ("finished", []), summary.error
    [metrics] = summary.metrics
    assert metrics["accuracy"] > 0
    assert ("personal_accuracy" in metrics) == (name == "ditto")
    if name == "private":
        assert summary.rounds[0].epsilon > 0
        assert "clipping norm" in write_page([directory.path]).read_text()


def test_stragglers_are_phones_of_unequal_speed_and_learn(run, tmp_path):
    job = load_job(JOBS / "stragglers" / "job.conf")
    devices = [job.device(site) for site in job.clients.site_names]
    assert {device.name for device in devices} >= {"nexus-6", "redmi-note-8"}
    assert len({(device.speed, device.up, device.down) for device in devices}) > 30
    summary, _ = run("stragglers", *INLINE, "rounds=3")
    assert summary.metrics[-1]["accuracy"] > 0.8
    for name, lines in variants_of("stragglers"):
        varied = load_job(uncommented("stragglers", lines, tmp_path / name))
        assert [varied.device(site).speed for site in varied.clients.site_names] == [
            device.speed for device in devices
        ]
        device = varied.device("site-1")
        assert (device.availability is not None, device.dropout > 0) == (
            name == "nights",
            name == "dropouts",
        )


SMALL = ("model.args.width=8", "train.args.rows=1", "workflow.args.inner_steps=3", "rounds=2")


def test_the_variants_of_diloco_are_these():
    assert [name for name, _ in OF_DILOCO] == ["streaming", "averaging", "thin"]


@first_and_nightly(
    ("name", "lines"), [("", ""), *OF_DILOCO], brief=1, ids=["plain", *(n for n, _ in OF_DILOCO)]
)
def test_diloco_trains_as_one_loop_however_many_exchanges_it_has(name, lines, tmp_path):
    path = uncommented("diloco", lines, tmp_path) if name else JOBS / "diloco" / "job.conf"
    own = ["workflow.args.overlap=1"] if name == "streaming" else []
    engine = ["engine.type=local"] if name == "thin" else INLINE
    job = load_job(path, [*engine, *SMALL, *own])
    directory = RunDirectory.create("diloco", tmp_path / "run")
    summary = simulate(job, directory)
    assert (summary.status, list(summary.warnings)) == ("finished", []), summary.error
    assert [row["loss"] < 6 for row in summary.metrics if "loss" in row] == [True, True]
    assert summary.best.round == 2  # of the least loss
