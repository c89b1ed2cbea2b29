"""Runs whose scripts are started by a command: ranks fail by name, and no process is left."""

import json
import signal
import subprocess
import sys

import psutil
import pytest
from training_scripts import kills_site, noisy, of_kind

from flstream.telemetry.events import ProcessReady, SitePhaseChanged

pytestmark = pytest.mark.usefixtures("processes")
PYTHON = 'train.command="python3 -u"'
TORCHRUN = 'train.command="torchrun --nproc_per_node=2"'
# The gradients of two ranks are summed, and rank 0 has a momentum in the site's own files.
RANKS = """
import os
import torch
import torch.distributed as dist
import flstream.client as flare

dist.init_process_group("gloo")
rank = dist.get_rank()
flare.init(rank)
while flare.is_running():
    params = flare.receive().params or {}
    state = flare.get_state_dir() / "sum.pt"
    total = torch.load(state) if state.exists() else torch.zeros(1000)
    noise = torch.randn(1000) * (rank + 1)
%s
    dist.all_reduce(noise)
    if rank == 0:
        torch.save(total + noise, state)
        params["w"] += noise + total
        flare.send(flare.FLModel(params))
dist.destroy_process_group()
"""
# Prints how commands have ended while the kernel has killed some process of the run.
ENDS = """
import json, socket, sys, tempfile
from pathlib import Path
from flstream.engines.engine import WorkerSockets
from flstream.simulation import command
from flstream.telemetry.memory_group import LimitKills

LimitKills.clause = lambda self, remedy: f", as memory_limit was reached{remedy}"
RANK = (
    "import os, socket; worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
    "worker.connect(os.environ['FLSTREAM_COMMAND'] + '/s'); worker.send(b'0'); worker.recv(1)"
)
reasons = []
for words in (
    ["sh", "-c", "echo its own cause >&2; exit 3"],
    ["sh", "-c", "echo the last line >&2; kill -9 $$"],
    ["sh", "-c", "exit 137"],
    [sys.executable, "-c", RANK],
):
    end = WorkerSockets(*(socket.socket() for _ in WorkerSockets._fields))
    with tempfile.TemporaryDirectory() as folder:
        reasons.append(command._last_message(words, 1, Path(folder), end).reason)
print(json.dumps(reasons))
"""


def test_a_kill_at_the_limit_is_told_where_a_process_of_the_command_is_gone(tmp_path):
    with (tmp_path / "log").open("w") as log:
        words = [sys.executable, "-c", ENDS]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=log, timeout=60, check=True)
    own, killed, by_shell, rank = json.loads(done.stdout)
    assert own.endswith("sh exited with status 3 (its own cause)")
    clause = ", as memory_limit was reached, or start fewer ranks"
    assert killed.endswith(f"sh was killed by SIGKILL (the last line){clause}")
    assert by_shell.endswith(f"sh exited with status 137{clause}")
    assert rank.endswith(clause)


@pytest.mark.nightly
def test_a_command_has_a_process_beside_that_of_its_worker_and_its_memory_counts(jobs):
    script = noisy().replace("import flstream.client as flare", "import nvflare.client as flare")
    run = jobs.run(script, PYTHON, "train.alias=nvflare").finished()
    for event in of_kind(run, ProcessReady):
        if event.process != "server":
            assert event.pid not in event.others
            assert len(event.others) == 1  # the process of the worker itself
            peaks = run.summary.memory.clients[event.process]
            assert peaks.peak_rss >= event.idle_rss > 0


@pytest.mark.nightly
def test_a_run_that_is_stopped_leaves_no_process_of_a_command(jobs):
    pids = []

    def stop(event, sampler):
        if isinstance(event, ProcessReady) and event.others:
            pids.extend([event.pid, *event.others])
        if isinstance(event, SitePhaseChanged) and event.state == "training":
            signal.raise_signal(signal.SIGINT)

    run = jobs.run(noisy("threading.Event().wait()"), "clients.count=1", PYTHON, listener=stop)
    assert run.summary.status == "stopped"
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert pids
    assert psutil.wait_procs(processes, timeout=20)[1] == []


@pytest.mark.nightly
@pytest.mark.parametrize("time", range(10))
def test_a_rank_of_torchrun_that_raises_is_named_each_time(jobs, time):
    run = jobs.run(RANKS % "    {}['missing'] if rank == 1 else None", "clients.count=1", TORCHRUN)
    assert "rank 1: client.py, line 15 raised KeyError: 'missing'" in run.summary.error


@pytest.mark.nightly
def test_a_rank_that_raises_while_rank_0_sends_is_named(jobs):
    script = """
    import os
    import flstream.client as flare

    rank = int(os.environ["RANK"])
    if rank == 0:
        os.mkfifo("pipe")
    flare.init(rank)
    while flare.is_running():
        params = flare.receive().params
        if rank == 1:
            open("pipe").close()
            raise ValueError("ill")
        open("pipe", "w").close()
        flare.send(flare.FLModel(params))
    """
    slow = ("network.up=10 Mbit", "model.args.elements=2000000")
    run = jobs.run(script, *slow, "clients.count=1", TORCHRUN)
    assert "rank 1: client.py, line 13 raised ValueError: ill" in run.summary.error


@pytest.mark.nightly
def test_ranks_come_to_the_same_bits_again_and_after_a_kill(jobs):
    how = ("clients.count=1", "rounds=3", TORCHRUN)
    digests = [jobs.run(RANKS % "", *how).summary.model.digest for _ in range(2)]
    killed = jobs.run(RANKS % "", *how, listener=kills_site(2))
    assert killed.summary.status == "failed"
    resumed = jobs.go_on(killed, RANKS % "", *how)
    assert {*digests, resumed.summary.model.digest} == {digests[0]}


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_at_its_exit_holding_the_gil_ends_with_the_run(jobs, rank):
    pids = []

    def note(event, sampler):
        if isinstance(event, ProcessReady) and event.others:
            pids.extend([event.pid, *event.others])

    hangs = f"if rank == {rank}: atexit.register(ctypes.PyDLL(None).pause)"
    script = "import atexit, ctypes\n" + (RANKS % "").replace("flare.init", f"{hangs}\nflare.init")
    jobs.run(script, "clients.count=1", "rounds=1", TORCHRUN, listener=note).finished()
    assert len(pids) >= 3
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(processes, timeout=20)[1] == []
