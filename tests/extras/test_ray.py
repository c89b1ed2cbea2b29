"""Runs on a Ray cluster of a head and two nodes: bits, what goes to the nodes, and refusals."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ray_cluster import RayCluster, is_possible
from ray_jobs import JOB, Marks, finish, summary_of, write_app, write_job

JOBS = Path(__file__).parents[2] / "jobs"
# 25 to 40 s each.
BITS = {
    "digits": (JOBS / "digits", ["rounds=3"]),
    "exchange": (JOBS / "exchange", ["rounds=2"]),
    "command": (JOBS / "exchange", ["rounds=2", "model.args.size=4MiB", "train.command=python"]),
    "gpt2": (JOBS / "gpt2" / "lora.conf", ["rounds=2", "train.args.max_steps=2"]),
    "swarm": (JOBS / "digits", ["rounds=3", "workflow.type=swarm"]),
    "diloco": (
        JOBS / "diloco",
        [
            "rounds=6",
            "workflow.args={inner_steps=6, fragments=2, overlap=2, alpha=0.5, evaluate_every=3}",
            "train.args.steps=18",
            "streaming.codecs={up=[int4], down=[int8], down_of=changes}",
        ],
    ),
    "flower": (None, []),
    "clock": (JOBS / "stragglers", ["rounds=8", "workflow={type=fedbuff, args{buffer_size=5}}"]),
}

pytestmark = pytest.mark.skipif(
    not is_possible(), reason="needs unshare, nsenter and ip, for networks of its own"
)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def cluster(folder):
    made = RayCluster(folder, start=["--num-gpus=2"])  # these GPUs are names alone
    try:
        made.start()
        yield made
    finally:
        made.close()


def local(job, run, *options):
    line = [sys.executable, "-m", "flstream", "simulate", str(job), "-q", "--run-dir", str(run)]
    env = {**os.environ, "XDG_CACHE_HOME": str(run.parent)}  # for the base of gpt2
    done = subprocess.run([*line, *options], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", BITS)
def test_the_bits_are_those_of_one_machine(cluster, folder, name):
    job, settings = BITS[name]
    job = job or write_app(folder / "app")
    options = [word for each in settings for word in ("--set", each)]
    status, text = finish(cluster.simulate(job, folder / f"{name}-ray", *options))
    assert status == 0, text
    summary = summary_of(folder / f"{name}-ray")
    assert (summary["warnings"], summary["failures"]) == ([], [])
    assert len(summary["memory"]["nodes"]) == 2
    assert {each["node"] for each in summary["memory"]["clients"].values()} == set(
        summary["memory"]["nodes"]
    )
    local(job, folder / f"{name}-local", *options)
    alone = summary_of(folder / f"{name}-local")
    assert summary["model"]["digest"] == alone["model"]["digest"]
    assert summary.get("simulated_seconds") == alone.get("simulated_seconds")
    assert cluster.nothing_of_a_run_lives()


SEES = """
import os
from pathlib import Path

print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OF_THE_JOB"))
names = "small.txt", "large.bin", "an [odd] name?", ".hidden/x", "runs/old", "__pycache__/x.pyc"
for name in names:
    print(name, (Path(__file__).parent / name).exists())
print("data", open(os.environ["LARGE"]).read(3), os.environ["SMALL"] != os.environ["LARGE"])
"""
ARGS = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--large"); parser.add_argument("--small")
found = parser.parse_args()
os.environ["LARGE"], os.environ["SMALL"] = found.large, found.small
"""
TRAINS = """
import flstream.client as flare
flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params={name: each + 1 for name, each in model.params.items()}))
"""


def test_nodes_have_the_job_and_what_it_asks_for(cluster, folder):
    """Swarm also connects workers of two nodes; each has GPUs of its own (~25 s)."""
    job = folder / "sees"
    for name in ".hidden/x", "runs/old", "__pycache__/x.pyc", "an [odd] name?":
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text("x")
    (job / "small.txt").write_text("small")
    (job / "large.bin").write_text("big")
    for name in "large.bin", "an [odd] name?":
        os.truncate(job / name, 17 << 20)
    path = write_job(job, **{"client.py": ARGS + SEES + TRAINS})
    status, text = finish(
        cluster.simulate(
            path,
            folder / "sees-run",
            *("--set", "engine.gpus=1", "--set", "workflow.type=swarm", "--set", "rounds=2"),
            *("--set", "engine.runtime_env.env_vars.OF_THE_JOB=x"),
            *("--set", f"train.args.large={job}/large.bin"),
            *("--set", f"train.args.small={job}/small.txt"),
        )
    )
    assert status == 0, text
    summary = summary_of(folder / "sees-run")
    (warning,) = summary["warnings"]
    assert "(an [odd] name?, large.bin)" in warning
    logs = [path.read_text() for path in (folder / "sees-run" / "sites").glob("*/log.txt")]
    expected = "small.txt True\nlarge.bin False\nan [odd] name? False\n.hidden/x False\n"
    expected += "runs/old False\n__pycache__/x.pyc False\ndata big True\n"
    assert sorted(logs) == [f"GPUs: {gpu} x\n{expected}" for gpu in (0, 0, 1, 1)]
    assert cluster.nothing_of_a_run_lives()


def test_a_node_that_does_not_see_the_run_directory_is_a_sentence(cluster, folder):
    """Of the beginning; nothing is left of the run (~10 s)."""
    path, run = write_job(folder / "unseen"), folder / "elsewhere" / "run"
    run.parent.mkdir()
    cluster.run("mount", "-t", "tmpfs", "none", str(run.parent), node=3)
    try:
        status, text = finish(cluster.simulate(path, run))
    finally:
        cluster.run("umount", str(run.parent), node=3)
    assert status == 2, text
    assert f"it does not see {run}, the run directory; mount that folder there" in text
    assert list(run.iterdir()) == []
    assert cluster.nothing_of_a_run_lives()


def test_ctrl_c_stops_a_run_on_all_nodes(cluster, folder):
    """~10 s."""
    path, marks = write_job(folder / "stopped"), Marks(folder / "stopped-marks")
    options = ("--set", f"train.args.marks={marks.folder}")
    command = cluster.simulate(path, folder / "stopped-run", *options)
    marks.awaited()
    cluster.signal(signal.SIGINT, words="-m flstream simulate")
    status, text = finish(command)
    assert status == 130, text
    assert cluster.nothing_of_a_run_lives()


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path):
    line = ["simulate", str(write_job(tmp_path)), "-q", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "flstream", *line, "--engine", "ray:127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the Ray cluster 127.0.0.1:1 cannot be used: ConnectionRefused" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


SHORT = {"job.conf": JOB.replace("rounds = 8", "rounds = 2")}


@pytest.mark.nightly
def test_without_a_cluster_there_is_a_new_one_which_leaves_nothing(folder):
    """~20 s."""
    path = write_job(folder / "alone", **SHORT)
    cluster = RayCluster(folder / "0", nodes=0, variables={"RAY_TMPDIR": f"{folder}/t"})
    try:
        status, text = finish(cluster.simulate(path, folder / "new", "--engine", "ray"))
        assert status == 0, text
        assert not cluster.processes()
    finally:
        cluster.close()


@pytest.mark.nightly
def test_a_cluster_with_tokens_lets_nobody_in_without(folder):
    """The token is in a file, as ray get-auth-token writes it (~40 s)."""
    path, home = write_job(folder / "secret", **SHORT), folder / "home"
    (home / ".ray").mkdir(parents=True)
    token = home / ".ray" / "auth_token"
    token.write_text("ab" * 32)
    cluster = RayCluster(home, variables={"HOME": str(home), "RAY_AUTH_MODE": "token"})
    try:
        cluster.start()
        status, text = finish(cluster.simulate(path, folder / "known"))
        assert status == 0, text
        token.write_text("cd" * 32)
        status, text = finish(cluster.simulate(path, folder / "strange"))
        assert status == 1, text
        assert "cannot be used" in text
        assert cluster.nothing_of_a_run_lives()
    finally:
        cluster.close()
