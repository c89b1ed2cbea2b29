"""Training code as it is in the world: its processes, its files, and what it draws and prints."""

import json
import os
import signal

import psutil
import pytest
from training_scripts import QUIET

from flstream.telemetry.events import SERVER, ProcessReady, SiteLog

# A dataset in a file of its own that notes who imports it, as a real one would load its data then.
DATA = """
import os, pathlib
import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index)), torch.tensor(os.getpid())


with open(pathlib.Path(__file__).parent / "imports.txt", "a") as log:
    log.write(f"{os.getpid()}\\n")
"""

# No __main__ guard, as in most examples; workers, a pool, and files under relative names.
SCRIPT = """
import json, multiprocessing, os, pathlib, random
import numpy as np
import torch
import flstream.client as flare
from data import Numbers
from model import build


def square(number):
    return number * number


drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
flare.init()
print(flare.system_info())
while flare.is_running():
    model = flare.receive()
    assert list(model.params) == list(build()), "not in the order of the model"
    again = flare.receive()
    draw = random.random()
    flare.receive()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    batches = [(values.sum().item(), pids) for values, pids in loader]
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, range(4))
    pathlib.Path("mine.json").write_text(json.dumps({
        "method": multiprocessing.get_start_method(),
        "sums": [total for total, _ in batches],
        "own": os.getpid() in {int(pid) for _, pids in batches for pid in pids},
        "squares": squares,
        "same": again is model and random.random() != draw,
        "drawn": drawn,
        "site": flare.get_site_name(),
    }))
    params = dict(reversed(model.params.items()))
    flare.send(flare.FLModel(params=params, metrics={"x": 1}, meta=None))
"""
TIED = """
import torch


def build():
    weight = torch.zeros(3)
    state = {"z": weight, "y": torch.zeros(2, dtype=torch.int64), "m": torch.ones(2), "a": weight}
    return state
"""


@pytest.mark.usefixtures("processes")
def test_a_script_has_processes_files_and_random_numbers_of_its_own(jobs):
    found, initial = [], []
    for _ in range(2):
        (jobs.folder / "data.py").write_text(DATA)
        (jobs.folder / "imports.txt").unlink(missing_ok=True)
        how = ["rounds=1", QUIET, "clients.parallel=1", *initial]
        run = jobs.run(SCRIPT, *how, model=TIED).finished()
        # The worker once, and none of the processes that its data loaders and pools start.
        imports = (jobs.folder / "imports.txt").read_text().split()
        assert len(imports) == len(set(imports)) == 1
        for site in ("site-1", "site-2"):
            mine = run.directory.site(site) / "work" / "mine.json"
            seen = json.loads(mine.read_text())
            assert (seen["method"], seen["sums"], seen["own"]) == ("fork", [6.0, 22.0], False)
            assert (seen["squares"], seen["same"], seen["site"]) == ([0, 1, 4, 9], True, site)
            found.append(seen["drawn"])
        log = run.directory.site_log("site-1").read_text()
        assert log.startswith("{'site_name': 'site-1', 'site_index': 0, 'job_name': 'test'")
        initial = [f"model.initial={run.directory.final_model}"]
    one, two, *again = found
    assert again == [one, two]  # in each run the same
    assert all(first != second for first, second in zip(one, two, strict=True))


STARTS = """
import multiprocessing, subprocess, threading
import flstream.client as flare

flare.init()
model = flare.receive()
pool = multiprocessing.Pool(1)
sleeper = subprocess.Popen(["sleep", "777"])
children = [each.pid for each in multiprocessing.active_children()] + [sleeper.pid]
flare.log("children", " ".join(map(str, children)))
threading.Event().wait()
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("processes")
def test_what_training_code_has_started_ends_with_a_run_that_is_killed(jobs):
    found, pids = [], {}

    def kill(event, sampler):
        if isinstance(event, ProcessReady):
            pids[event.process] = event.pid
        if isinstance(event, SiteLog) and event.site == "site-1":
            found.extend(map(psutil.Process, map(int, event.text.split())))
            os.kill(pids[SERVER], signal.SIGKILL)

    run = jobs.run(STARTS, listener=kill)
    assert run.summary.status == "failed"
    assert len(found) == 2
    _, left = psutil.wait_procs(found, timeout=10)
    assert left == []
