"""A run on a Ray cluster of a head and two nodes, all on this machine.

The cluster is in a network of its own, so that it meets no other and needs no free port, and in
processes of its own, of which none is left behind.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from run_fixtures import MODEL
from training_scripts import drawing

JOB = """
name = ray, seed = 3, rounds = 2
clients { count = 4, min_updates = 1 }
model { factory = "model:build" }
train { script = client.py }
workflow { args { evaluate_every = 0 } }
"""
GPUS = """
import os
print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""
# The addresses stand for machines; the head has no room, so that workers are on the two others.
CLUSTER = """
set -e
ip link set lo up
ray() {{ {python} -m ray.scripts.scripts "$@" --disable-usage-stats > {folder}/ray.txt 2>&1; }}
small="--object-store-memory=80000000"
ray start --head --node-ip-address=127.0.0.2 --port=6399 --num-cpus=0 --include-dashboard=false \
    --temp-dir={folder}/r $small
node="--num-cpus=3 --num-gpus=2 $small"  # these GPUs are names alone
ray start --address=127.0.0.2:6399 --node-ip-address=127.0.0.3 $node
ray start --address=127.0.0.2:6399 --node-ip-address=127.0.0.4 $node
{python} -m flstream simulate {folder}/job.conf --run-dir {folder}/run \
    --engine ray:127.0.0.2:6399 --set engine.gpus=1
"""


@pytest.fixture
def folder():
    # Ray puts sockets into it, whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as name:
        folder = Path(name)
        files = {"job.conf": JOB, "model.py": MODEL, "client.py": GPUS + drawing()}
        for name, text in files.items():
            (folder / name).write_text(text)
        yield folder


def run_alone(script):
    """Run a shell script in a network and with processes of its own, and kill all of them."""
    # In a process namespace, all end with the first of them.
    alone = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    line, env = [*alone, "--mount-proc", "bash", "-c", script], {"RAY_USAGE_STATS_ENABLED": "0"}
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(line, **out, text=True, env=os.environ | env) as process:
        try:
            out, _ = process.communicate(timeout=180)
        finally:
            process.send_signal(signal.SIGKILL)
    return process.returncode, out


def simulate(folder, name, *options):
    command = [sys.executable, "-m", "flstream", "simulate", str(folder / "job.conf"), "-q"]
    command += ["--run-dir", str(folder / name), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=150)


@pytest.mark.nightly
def test_the_bits_on_a_cluster_are_those_of_one_machine(folder):
    if not shutil.which("unshare") or run_alone("ip link set lo up")[0]:
        pytest.skip("needs unshare and ip, for a network of its own")
    status, text = run_alone(CLUSTER.format(python=sys.executable, folder=folder))
    assert status == 0, text
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["status"], summary["warnings"]) == ("finished", [])
    assert len(summary["memory"]["nodes"]) == 2
    logs = [path.read_text() for path in (folder / "run" / "sites").glob("*/log.txt")]
    assert sorted(logs) == ["GPUs: 0\n", "GPUs: 0\n", "GPUs: 1\n", "GPUs: 1\n"]
    assert simulate(folder, "local").returncode == 0
    local = json.loads((folder / "local" / "summary.json").read_text())
    assert summary["model"]["digest"] == local["model"]["digest"]


def test_a_cluster_that_is_not_there_is_a_sentence(folder):
    done = simulate(folder, "run", "--engine", "ray:127.0.0.1:1")
    assert done.returncode == 1
    assert "the Ray cluster 127.0.0.1:1 cannot be reached" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
