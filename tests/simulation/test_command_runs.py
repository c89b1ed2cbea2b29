"""Runs whose scripts are started by a command: a process more for each, and none that is left."""

import signal

import psutil
import pytest
from training_scripts import noisy, of_kind

from flstream.telemetry.events import ProcessReady, SitePhaseChanged

pytestmark = pytest.mark.usefixtures("processes")
PYTHON = 'train.command="python3 -u"'


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
