"""Runs whose scripts are started by a command: their processes, and none of them left."""

import os
import signal

import psutil
import pytest
from training_scripts import noisy, of_kind, results

from flstream.telemetry.events import ProcessReady, SitePhaseChanged

pytestmark = pytest.mark.usefixtures("processes")
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


@pytest.mark.nightly
def test_a_command_has_a_process_beside_that_of_its_worker_and_its_memory_counts(jobs):
    script = noisy().replace("import flstream.client as flare", "import nvflare.client as flare")
    run = jobs.run(script, PYTHON, "train.alias=nvflare")
    assert run.summary.status == "finished", run.summary.error
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
