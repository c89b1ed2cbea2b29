"""The job of a thousand sites, which takes two processes and learns to read digits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flstream.model.checkpoint import FileSource

JOB = Path(__file__).parents[2] / "jobs/virtual/job.conf"


@pytest.mark.nightly
def test_a_thousand_sites_learn_to_read_digits(tmp_path):
    options = ["--set", "rounds=6", "--set", "workflow.args.evaluate_every=6"]
    command = ["-m", "flstream", "simulate", str(JOB), "--json", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, *command, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished"
    assert set(summary["memory"]["clients"]) == {"worker-1", "worker-2"}
    assert summary["metrics"][-1]["accuracy"] > 0.8
    layout = FileSource(tmp_path / "run/global.safetensors").layout
    assert {spec.name: spec.shape for spec in layout.tensors} == {"weight": (64, 10), "bias": (10,)}
