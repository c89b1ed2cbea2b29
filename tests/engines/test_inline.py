"""The inline engine: a whole run in one process, to the bits of the local engine."""

import builtins
import gc
import json
import multiprocessing.util
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from nightly_cases import first_and_nightly
from run_fixtures import INLINE, Jobs, Run
from terminal import Terminal
from training_scripts import noisy

from flstream.client.session import present
from flstream.errors import UsageError
from flstream.job import JobError
from flstream.simulation import inline, launcher
from flstream.simulation.inline import InlineHost
from flstream.telemetry.events import SiteFailed
from flstream.transport.channel import Signal

pytestmark = pytest.mark.usefixtures("_without_pages")

# Draws from each generator, also between tasks, and keeps variables, modules and files of its own.
SCRIPT = """
import os, random, sys, types
import numpy as np
import torch
import helper
import flstream.client as flare

flare.init()
sys.modules.setdefault("stub", types.ModuleType("stub")).calls = 0
names, before = [], 0.0
while flare.is_running():
    model = flare.receive()
    names.append(flare.get_site_name())
    helper.calls += 1
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"mean": model.params["body.weight"].mean().item()}))
        continue
    drawn = random.random() + np.random.rand() + torch.rand(()).item() + before
    with open("tasks.txt", "a") as file:
        file.write(sys.argv[2])
    seen = len(set(names)) * 100 + helper.calls + os.path.getsize("tasks.txt")
    sys.modules["stub"].calls += 1
    seen += sys.modules["stub"].calls + torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    params = {}
    for name, tensor in model.params.items():
        params[name] = tensor + torch.randn(tensor.shape) * drawn + seen
    flare.send(flare.FLModel(params=params))
    before = random.random() + np.random.rand() + torch.rand(()).item()
"""
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 4)
        self.head = torch.nn.Linear(4, 2)
"""
OWN_WORKFLOW = """
import numpy as np
import helper

def run_it(run):
    helper.calls += 1
    model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sample(number)))
        run.evaluate(model)
    assert helper.calls == 1
    return model

class Least:
    def fold(self, values, weights):
        return values.min(axis=0) + np.random.default_rng(3).random()
"""
JOB = """
name = test, seed = 7, rounds = 2
clients { count = 2 }
model { factory = "model:Net" }
train { script = client.py, args { word = abc } }
"""
FILES = {
    "model.py": MODEL,
    "client.py": SCRIPT,
    "helper.py": "calls = 0\n",
    "flow.py": OWN_WORKFLOW,
    "job.conf": JOB,
}
PRIVATE = ("clients.count=6", "privacy={type=central,noise_multiplier=1,clipping{norm=1}}")
CASES = {
    "script": ("clients.parallel=1",),
    "own": ("workflow.type=flow.py:run_it", "aggregation.method=flow.py:Least"),
}


def made(run: Run) -> Mapping[str, Any]:
    """All that a run is to have made, whatever its engine."""
    summary, files = run.summary, run.directory
    return {
        "status": summary.status,
        "error": summary.error,
        "digest": summary.model.digest,
        "metrics": summary.metrics,
        "warnings": summary.warnings,
        "models": {each.name: each.read_bytes() for each in files.checkpoints.glob("*")},
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("processes")
def test_a_job_comes_to_the_bits_of_the_local_engine(jobs: Jobs, case: str):
    inline = jobs.run_files(FILES, *INLINE, *CASES[case]).finished()
    assert made(inline) == made(jobs.run_files(FILES, *CASES[case]))


def left_behind() -> Mapping[str, Any]:
    gc.collect()  # what exceptions refer to
    return {
        "threads": threading.enumerate(),
        "descriptors": {
            name: os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
            for name in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{name}")
        },
        "folder": os.getcwd(),
        "argv": list(sys.argv),
        "path": list(sys.path),
        "finders": list(sys.meta_path),
        "streams": (sys.stdout, sys.stderr),
        "modules": {name: sys.modules.get(name) for name in ("model", "helper", "nvflare", "flow")},
        "main": sys.modules["__main__"],
        "handlers": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "hooks": (builtins.input, sys.breakpointhook),
        "frozen": gc.get_freeze_count(),
        "session": present(),
        "generators": (
            random.getstate(),
            np.random.get_state()[1].tobytes(),  # type: ignore[union-attr]
            torch.get_rng_state().numpy().tobytes(),
        ),
        "threads of torch": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
    }


MESSY = """
import os, sys
import torch
import helper
import nvflare.client as flare

torch.set_num_threads(2)
torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
sys.path.insert(0, "/nowhere")
sys.stdout = sys.stderr
helper.calls = 5
flare.init()
while flare.is_running():
    model = flare.receive()
    os.chdir("/")
    if flare.get_site_name() == "site-2" and model.current_round == 1:
        raise RuntimeError("not today")
    flare.send(flare.FLModel(params=model.params, metrics={"x": 1.0}))
"""


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_left_behind(jobs: Jobs, count: int):
    """Neither where a run finishes nor where it fails."""
    files = {**FILES, "client.py": MESSY}
    jobs.run_files(files, "train.alias=nvflare", "clients.count=1")  # imports what it needs
    before = left_behind()
    run = jobs.run_files(files, "train.alias=nvflare", f"clients.count={count}")
    assert run.summary.status == ("finished" if count == 1 else "failed"), run.summary.error
    assert left_behind() == before


def test_nothing_is_left_behind_where_no_thread_has_begun(jobs: Jobs):
    job = jobs.make(FILES["client.py"])
    before = left_behind()
    with closing(Signal()) as stop, InlineHost(job, stop, is_shown=True):
        pass
    assert left_behind() == before


def test_no_process_is_started(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    """Not for models, accounts of privacy or trackers, either."""
    for owner, name in (
        (os, "fork"),
        (subprocess, "Popen"),
        (multiprocessing.util, "spawnv_passfds"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("a process"))
    run = jobs.run_files(FILES, *PRIVATE, "tracking.type=tensorboard").finished()
    assert list((run.directory.path / "tensorboard").rglob("events.*"))


def test_an_exception_is_a_sites_failure_with_its_traceback(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
):
    events: list[Any] = []
    script = """
        import flstream.client as flare
        flare.init()
        print("hello from", flare.get_site_name())
        while flare.is_running():
            flare.receive()
            raise ZeroDivisionError("by hand")
        """
    listener = lambda event, _: events.append(event)  # noqa: E731
    run = jobs.run(script, "clients.count=1", listener=listener)
    assert run.summary.status == "failed"
    failed = [each for each in events if isinstance(each, SiteFailed)]
    assert "client.py, line 7 raised ZeroDivisionError: by hand" in failed[0].reason
    output = capsys.readouterr()
    assert "hello from site-1" in output.out
    assert 'raise ZeroDivisionError("by hand")' in output.err
    log = run.directory.site_log("site-1").read_text()
    assert "hello from site-1" in log
    assert 'raise ZeroDivisionError("by hand")' in log


@pytest.mark.usefixtures("processes")
def test_a_script_that_ends_itself_does_so_as_in_a_process_of_its_own(jobs: Jobs):
    script = "import sys\nimport flstream.client as flare\nflare.init()\nsys.exit({})"
    for status, words in ("3", "exited with status 3"), ("'because'", "ended itself: because"):
        text = script.format(status)
        one = "clients.count=1"
        inline, local = jobs.run(text, one, *INLINE), jobs.run(text, one)
        assert f"client.py {words}; its log is" in inline.summary.error
        assert inline.summary.error == local.summary.error


WITH_BREAKPOINT = """
import flstream.client as flare
flare.init()
while flare.is_running():
    model = flare.receive()
    secret = 40 + 2
    breakpoint()
    flare.send(flare.FLModel(params=model.params, metrics={"x": 1.0}))
"""


class InlineTerminal(Terminal):
    """A terminal on which the job of a folder is simulated inline."""

    def __init__(self, jobs: Jobs, *options: str) -> None:
        run = jobs.folder / "run"
        self._summary = run / "summary.json"
        inline = ("--engine", "inline")
        super().__init__("simulate", str(jobs.folder), "--run-dir", str(run), *options, *inline)

    def assert_stopped(self) -> None:
        """The command was stopped, and says so of its run."""
        assert self.status() == 130
        summary = json.loads(self._summary.read_text())
        assert (summary["status"], summary["error"]) == ("stopped", "the run was stopped")


def test_a_breakpoint_in_training_code_opens_pdb(jobs: Jobs):
    jobs.make(WITH_BREAKPOINT, "rounds=1", "clients.count=1")
    terminal = InlineTerminal(jobs, "-r", "1", "-n", "1")
    # After the line: Python 3.13 stops in the line of breakpoint() itself.
    assert "client.py(" in terminal.until("(Pdb) ")
    assert "42" in terminal.pdb("secret")
    assert "'site-1'" in terminal.pdb("p flare.get_site_name()")
    terminal.pdb("next")
    terminal.enter("c\n")
    terminal.until("the run finished")
    assert terminal.status() == 0


def test_a_breakpoint_in_a_workflow_opens_pdb_and_to_quit_it_stops_the_run(jobs: Jobs):
    flow = OWN_WORKFLOW.replace("helper.calls += 1", "here = 7; breakpoint()")
    for name, text in {**FILES, "flow.py": flow}.items():
        (jobs.folder / name).write_text(text)
    terminal = InlineTerminal(jobs, "--set", "workflow.type=flow.py:run_it")
    terminal.until("(Pdb) ")
    assert "7" in terminal.pdb("p here")
    terminal.enter("q\n")
    terminal.assert_stopped()


@first_and_nightly("key", ["\x03", "\x04"])
def test_to_leave_pdb_stops_the_run(jobs: Jobs, key: str):
    """By Ctrl-C and by Ctrl-D, as by its command."""
    jobs.make(WITH_BREAKPOINT)
    terminal = InlineTerminal(jobs)
    terminal.until("(Pdb) ")
    terminal.enter(key)
    terminal.assert_stopped()


def test_ctrl_c_stops_code_that_works(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    # The code keeps a core busy until these have passed.
    monkeypatch.setattr(launcher, "_STOP_SECONDS", 0.5)
    monkeypatch.setattr(launcher, "_EXIT_SECONDS", 0.5)
    monkeypatch.setattr(inline, "_GRACE_SECONDS", 0.5)
    script = WITH_BREAKPOINT.replace("breakpoint()", "print('at work')\n    while True: pass")
    jobs.make(script)
    terminal = InlineTerminal(jobs)
    terminal.until("at work")
    terminal.enter("\x03")
    terminal.assert_stopped()


@first_and_nightly("answer", ["c", "q"])
def test_a_breakpoint_in_a_tracker_opens_pdb_also_once_the_run_is_over(jobs: Jobs, answer: str):
    tracker = """
    class Tracker:
        def __init__(self, run): ...
        def scalars(self, source, step, values, time): ...
        def text(self, source, step, key, text, time): ...
        def flush(self): ...
        def close(self): here = 7; breakpoint()
    """
    jobs.make(noisy())
    (jobs.folder / "mine.py").write_text(textwrap.dedent(tracker))
    terminal = InlineTerminal(jobs, "--set", "tracking.type=mine.py:Tracker")
    terminal.until("(Pdb) ")
    assert "7" in terminal.pdb("p here")
    terminal.enter(f"{answer}\n")
    terminal.until("finished after" if answer == "c" else "mine.py:Tracker raised BdbQuit")
    assert terminal.status() == 0


def test_pdb_opens_where_training_code_raises(jobs: Jobs):
    script = WITH_BREAKPOINT.replace("breakpoint()", "secret / 0")
    jobs.make(script)
    terminal = InlineTerminal(jobs, "--pdb", "--quiet", "-n", "1")
    before = terminal.until("(Pdb) ")
    assert "ZeroDivisionError: division by zero" in before
    assert "-> secret / 0" in before
    assert "42" in terminal.pdb("p secret")
    terminal.enter("q\n")
    terminal.until("raised ZeroDivisionError")
    assert terminal.status() == 1


def test_no_time_is_limited(jobs: Jobs):
    """A site waits for the others, and all of them for who sits in pdb."""
    times = "clients.round_timeout", "clients.wait_after_min"
    times = *times, "streaming.streaming_per_request_timeout"
    jobs.run(noisy(), *(f"{key}=1us" for key in times)).finished()


def test_threads_of_training_code_have_the_session_of_its_site(jobs: Jobs):
    script = """
        from threading import Thread
        import flstream.client as flare
        flare.init()
        while flare.is_running():
            model = flare.receive()
            names = []
            thread = Thread(target=lambda: names.append(flare.get_site_name()))
            thread.start()
            thread.join()
            assert names == [flare.get_site_name()]
            flare.send(flare.FLModel(params=model.params, metrics={"x": 1.0}))
        """
    jobs.run(script).finished()


@pytest.mark.parametrize("override", ["train.command=python", "clients.gpus=[0]", "engine.gpus=1"])
def test_what_needs_processes_is_refused(jobs: Jobs, override: str):
    key = override.partition("=")[0]
    with pytest.raises(JobError) as caught:
        jobs.make(noisy(), override)
    assert f"other than inline where {key} is given" in str(caught.value)
    assert f"leave {key} out" in str(caught.value)


@pytest.mark.usefixtures("processes")
def test_pdb_is_refused_elsewhere(jobs: Jobs):
    with pytest.raises(JobError, match=r"engine\.pdb.*unless engine\.type is inline"):
        jobs.make(noisy(), "engine.pdb=true")


def test_there_is_one_run_at_a_time(jobs: Jobs):
    caught: list[UsageError] = []

    def listen(event: Any, sampler: Any) -> None:
        if not caught:
            with pytest.raises(UsageError, match="is under way in this process") as error:
                jobs.run(noisy())
            caught.append(error.value)

    jobs.run(noisy(), listener=listen).finished()
    assert caught
