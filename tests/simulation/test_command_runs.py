"""Runs whose scripts are started by a command: the same bits, and no process left."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap

import psutil
import pytest
from training_scripts import noisy, of_kind, results

from flstream.telemetry.events import ProcessReady, SitePhaseChanged

PYTHON = 'train.command="python3 -u"'
TORCHRUN = 'train.command="torchrun --nproc_per_node=2"'

# What each rank adds follows from its number and the site's seed; all have the sum of it.
GRADIENTS = """
import torch
import torch.distributed as dist
import flstream.client as flare

dist.init_process_group("gloo")
rank = dist.get_rank()
flare.init(rank=rank)
draw = torch.Generator().manual_seed(rank)
while flare.is_running():
    model = flare.receive()
    w = model.params["w"] if rank == 0 else torch.empty(1000)
    dist.broadcast(w, 0)
    if flare.is_evaluate():
        if rank == 0:
            flare.send(flare.FLModel(metrics={"accuracy": w.mean().item()}))
        continue
    gradient = torch.randn(1000, generator=draw) + torch.randn(1000)
    dist.all_reduce(gradient)
    w -= gradient / 2
    if rank == 0:
        flare.send(flare.FLModel(params=model.params))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """What comes of two sites in two rounds, each in the process of its own worker."""
    return results(jobs_in(tmp_path_factory.mktemp("undisturbed")).run(noisy()))


@pytest.mark.nightly
def test_a_command_of_one_process_gives_the_same_bits(jobs, undisturbed):
    script = noisy().replace("import flstream.client as flare", "import nvflare.client as flare")
    run = jobs.run(script, PYTHON, "train.alias=nvflare")
    assert results(run) == undisturbed
    for event in of_kind(run, ProcessReady):
        if event.process != "server":
            assert event.pid not in event.others
            assert len(event.others) == 1  # the process of the worker itself
            peaks = run.summary.memory.clients[event.process]
            assert peaks.peak_rss >= event.idle_rss > 0


@pytest.mark.nightly
def test_ranks_of_torchrun_train_together_and_give_the_same_bits_again(jobs):
    pids = []

    def listen(event, sampler):
        if isinstance(event, ProcessReady):
            pids.extend([event.pid, *event.others])

    runs = [jobs.run(GRADIENTS, "clients.count=1", TORCHRUN, listener=listen) for _ in range(2)]
    assert results(runs[0]) == results(runs[1])
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    processes = [each for each in processes if each.pid != os.getpid()]
    assert psutil.wait_procs(processes, timeout=20)[1] == []


@pytest.mark.nightly
def test_a_run_whose_processes_were_all_killed_goes_on_to_the_same_bits(jobs, undisturbed):
    dies = """
    mark = os.path.join(flare.system_info()["job_dir"], "die")
    if number == 2 and site == "site-2" and os.path.exists(mark):
        os.unlink(mark)
        import psutil
        # The worker, the fork server, and the launcher.
        psutil.Process().parents()[2].kill()
        os.killpg(0, signal.SIGKILL)
    """
    script = noisy(textwrap.dedent(dies))
    job = jobs.make(script, PYTHON)
    (jobs.folder / "die").touch()
    run = jobs.folder / "run-killed"
    line = [sys.executable, "-m", "flstream", "simulate", job.folder, "--run-dir", run]
    # Nobody is left to remove what is temporary.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*line, "--set", PYTHON, "--quiet"],
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = jobs.go_on(run, script, PYTHON)
    assert results(again) == undisturbed


@pytest.mark.nightly
def test_a_run_that_is_stopped_leaves_no_process_of_a_command(jobs):
    pids = []

    def stop(event, sampler):
        if isinstance(event, ProcessReady) and event.others:
            pids.extend([event.pid, *event.others])
        if isinstance(event, SitePhaseChanged) and event.state == "training":
            signal.raise_signal(signal.SIGINT)

    waits = "import threading\n" + noisy("threading.Event().wait()")
    run = jobs.run(waits, "clients.count=1", PYTHON, listener=stop)
    assert run.summary.status == "stopped"
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert pids
    assert psutil.wait_procs(processes, timeout=20)[1] == []
