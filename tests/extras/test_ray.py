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

pytestmark = pytest.mark.extras

JOB = """
name = ray
seed = 3
rounds = 2
clients { count = 4, min_updates = 1 }
model { factory = "model:build" }
train { script = client.py }
workflow { args { evaluate_every = 0 } }
"""

MODEL = """
import torch


def build():
    return {"w": torch.zeros(100_000), "b": torch.zeros(3, 5, dtype=torch.float64)}
"""

SCRIPT = """
import os
import torch
import flstream.client as flare

flare.init()
print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
while flare.is_running():
    model = flare.receive()
    for tensor in model.params.values():
        tensor += torch.randn(tensor.shape, dtype=tensor.dtype)
    flare.send(flare.FLModel(params=model.params))
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
exec {python} -m flstream simulate {folder}/job.conf --run-dir {folder}/run \
    --engine ray:127.0.0.2:6399 --set engine.gpus=1
"""


@pytest.fixture
def folder():
    # Ray puts sockets into it, whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as name:
        yield Path(name)


def run_alone(script):
    """Run a shell script in a network and with processes of its own, and kill all of them."""
    # In a process namespace, all end with the first of them.
    alone = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    command = [*alone, "--mount-proc", "bash", "-c", script]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            out, _ = process.communicate(timeout=180)
        finally:
            process.send_signal(signal.SIGKILL)
    return process.returncode, out


def can_be_alone():
    return shutil.which("unshare") and run_alone("ip link set lo up")[0] == 0


def test_the_bits_on_a_cluster_are_those_of_one_machine(folder):
    if not can_be_alone():
        pytest.skip("needs unshare and ip, for a network of its own")
    for name, text in (("job.conf", JOB), ("model.py", MODEL), ("client.py", SCRIPT)):
        (folder / name).write_text(text)
    status, text = run_alone(CLUSTER.format(python=sys.executable, folder=folder))
    assert status == 0, text
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["warnings"] == []
    assert len(summary["memory"]["nodes"]) == 2
    logs = [path.read_text() for path in (folder / "run" / "sites").glob("*/log.txt")]
    assert sorted(logs) == ["GPUs: 0\n", "GPUs: 0\n", "GPUs: 1\n", "GPUs: 1\n"]
    where = [sys.executable, "-m", "flstream", "simulate", str(folder / "job.conf"), "-q"]
    subprocess.run([*where, "--run-dir", str(folder / "local")], check=True)
    local = json.loads((folder / "local" / "summary.json").read_text())
    assert summary["model"]["digest"] == local["model"]["digest"]


def test_a_node_whose_agent_was_killed_joins_again(folder):
    if not can_be_alone():
        pytest.skip("needs unshare and ip, for a network of its own")
    job = JOB.replace("rounds = 2", "rounds = 40")
    script = SCRIPT.replace("model = flare", "import time; time.sleep(0.5); model = flare")
    for name, text in (("job.conf", job), ("model.py", MODEL), ("client.py", script)):
        (folder / name).write_text(text)
    cluster = CLUSTER.format(python=sys.executable, folder=folder).replace("exec ", "")
    begin, command = cluster.split("small=")[0], "small=" + cluster.split("small=")[1]
    # Processes of this namespace alone are seen there: the agents of the two nodes, and no other.
    kill = """
(until grep -q '"round_finished"' {folder}/run/events.jsonl 2> /dev/null; do sleep 0.2; done
 kill -9 $(pgrep -o -f "[f]lstream join")) &
"""
    status, text = run_alone(begin + kill.format(folder=folder) + command)
    assert status == 0, text
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert len(summary["memory"]["nodes"]) == 3, (text, summary["warnings"])
    assert len([each for each in summary["warnings"] if each.startswith("node ")]) == 1
    nodes = {each["node"] for each in summary["memory"]["clients"].values()}
    assert len(nodes) == 2


def test_a_cluster_that_is_not_there_is_a_sentence(folder):
    for name, text in (("job.conf", JOB), ("model.py", MODEL), ("client.py", SCRIPT)):
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "flstream", "simulate", str(folder / "job.conf")]
    command += ["--engine", "ray:127.0.0.1:1", "--run-dir", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 1
    assert "the Ray cluster 127.0.0.1:1 cannot be reached" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
