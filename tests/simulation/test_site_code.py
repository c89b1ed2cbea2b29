"""Training code as it is in the world: its processes, its files, and what it draws and prints."""

import json
import os
import signal

import psutil
import pytest
from nightly_cases import first_and_nightly
from training_scripts import QUIET, results

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


def square(number):
    return number * number


drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
flare.init()
print(flare.system_info())
while flare.is_running():
    model = flare.receive()
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
    flare.send(flare.FLModel(params=model.params, metrics={"x": 1}, meta=None))
"""


@first_and_nightly("parallel", [2, 1])
def test_a_script_has_processes_files_and_random_numbers_of_its_own(jobs, parallel):
    found = []
    for _ in range(2):
        (jobs.folder / "data.py").write_text(DATA)
        (jobs.folder / "imports.txt").unlink(missing_ok=True)
        run = jobs.run(SCRIPT, "rounds=1", QUIET, f"clients.parallel={parallel}")
        assert run.summary.status == "finished", run.summary.error
        # Each worker once, and none of the processes that its data loaders and pools start.
        imports = (jobs.folder / "imports.txt").read_text().split()
        assert len(imports) == len(set(imports)) == parallel
        for site in ("site-1", "site-2"):
            mine = run.directory.site(site) / "work" / "mine.json"
            seen = json.loads(mine.read_text())
            assert (seen["method"], seen["sums"], seen["own"]) == ("fork", [6.0, 22.0], False)
            assert (seen["squares"], seen["same"], seen["site"]) == ([0, 1, 4, 9], True, site)
            found.append(seen["drawn"])
        log = run.directory.site_log("site-1").read_text()
        assert log.startswith("{'site_name': 'site-1', 'site_index': 0, 'job_name': 'test'")
    one, two, *again = found
    assert again == [one, two]  # in each run the same
    assert all(first != second for first, second in zip(one, two, strict=True))


def test_a_file_that_lies_beside_the_job_is_looked_for_there(jobs):
    (jobs.folder / "mine.csv").write_text("1,2")
    opened = """
    import flstream.client as flare
    flare.init()
    flare.receive()
    open("{}")
    """
    run = jobs.run(opened.format("mine.csv"))
    assert "raised FileNotFoundError" in run.summary.error
    assert f"it is in the job's folder, {jobs.folder}" in run.summary.error
    assert "flare.system_info()['job_dir']" in run.summary.error
    other = jobs.run(opened.format("none.csv"))
    assert f"the job's is {jobs.folder}" in other.summary.error
    found = jobs.run("""
    import pathlib
    import flstream.client as flare
    flare.init()
    assert pathlib.Path(flare.system_info()["job_dir"], "mine.csv").read_text() == "1,2"
    while flare.is_running():
        flare.send(flare.FLModel(params=flare.receive().params, metrics={}))
    """)
    assert found.summary.status == "finished", found.summary.error


FACE = """
import flstream.client as flare

flare.init(rank=0, config_file="config.json")
assert flare.get_task_name() in (None, "train", "evaluate") and flare.get_job_id() == "test"
config = flare.get_config()
assert config["site_name"] == flare.get_site_name() and config["clients"] == 2
while flare.is_running():
    model = flare.receive()
    assert flare.get_task_name() == ("train" if flare.is_train() else "evaluate")
    assert not flare.is_submit_model() and model.start_round == 0
    params = dict(model.params)
    flare.clear()
    assert model.params is None
    flare.send(flare.FLModel(params=params, metrics={"x": 1}))
flare.shutdown()
assert not flare.is_running()
"""


@pytest.mark.parametrize("parallel", [2, 1])
def test_the_other_functions_of_the_client_api_do_what_they_say(jobs, parallel):
    run = jobs.run(FACE, f"clients.parallel={parallel}")
    assert run.summary.status == "finished", run.summary.error


LEARNER = """
import random
import numpy as np
import torch
import flstream.client as flare


class Plain:
    def __init__(self):
        self.drawn = random.random() + float(np.random.rand()) + float(torch.rand(()))

    def train(self, model):
        model.params["w"] += self.drawn
        return flare.FLModel(params=model.params)

    def evaluate(self, model):
        return flare.FLModel(metrics={"w": float(model.params["w"][0])})
"""


def test_a_learner_needs_no_setup_and_draws_the_same_numbers_in_each_run(jobs):
    named = ["train.script=null", "train.learner=client:Plain"]
    first = jobs.run(LEARNER, *named)
    assert first.summary.status == "finished", first.summary.error
    assert results(jobs.run(LEARNER, *named, "clients.parallel=1")) == results(first)


NAMED = """
import argparse, json, pathlib
import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--data")
args = parser.parse_args()
flare.init()
info = flare.system_info()
while flare.is_running():
    model = flare.receive()
    pathlib.Path("args.json").write_text(json.dumps([vars(args), info["site_args"]]))
    flare.send(flare.FLModel(params=model.params, metrics={"lr": args.lr}))
"""


@pytest.mark.parametrize("parallel", [2, 1])
def test_sites_have_names_and_arguments_of_their_own(jobs, parallel):
    overrides = [
        "clients.names=[ward, lab.2]",
        "clients.count=2",
        """clients.args={ ward { data = a.csv }, "lab.2" { lr = 2.5, data = b.csv } }""",
        "train.args.lr=1.5",
        f"clients.parallel={parallel}",
    ]
    run = jobs.run(NAMED, *overrides)
    assert run.summary.status == "finished", run.summary.error
    for site, lr, own in (
        ("ward", 1.5, {"data": "a.csv"}),
        ("lab.2", 2.5, {"lr": 2.5, "data": "b.csv"}),
    ):
        seen = json.loads((run.directory.site(site) / "work" / "args.json").read_text())
        assert seen == [{"lr": lr, "data": own["data"]}, own]
    assert sorted(path.name for path in run.directory.sites.iterdir()) == ["lab.2", "ward"]


OWN = """
import numpy as np
import flstream.client as flare


class Site:
    def train(self, model):
        model.params["w"] += self.site.args["step"] * (self.site.index + 1)
        return flare.FLModel(params=model.params)

    def evaluate(self, model):
        return flare.FLModel(metrics={"w": float(model.params["w"][0])})
"""


def test_a_learner_finds_its_sites_arguments_and_place(jobs):
    run = jobs.run(
        OWN,
        "train.script=null",
        "train.learner=client:Site",
        "clients.names=[b, a]",
        "clients.count=2",
        "clients.args={ b { step = 1.0 }, a { step = 3.0 } }",
        "rounds=1",
        model="""
        import torch

        def build():
            return {"w": torch.zeros(3)}
        """,
    )
    assert run.summary.metrics[-1]["w"] == (1.0 + 6.0) / 2


ORDERED = """
import flstream.client as flare
from model import build

flare.init()
while flare.is_running():
    model = flare.receive()
    assert list(model.params) == list(build()), list(model.params)
    params = dict(reversed(model.params.items()))
    flare.send(flare.FLModel(params=params, metrics={"x": 1}))
"""
TIED = """
import torch


def build():
    weight = torch.zeros(3)
    state = {"z": weight, "y": torch.zeros(2, dtype=torch.int64), "m": torch.ones(2), "a": weight}
    return state
"""


@pytest.mark.parametrize("parallel", [2, 1])
def test_received_tensors_are_in_the_order_of_the_model(jobs, parallel):
    run = jobs.run(ORDERED, f"clients.parallel={parallel}", model=TIED)
    assert run.summary.status == "finished", run.summary.error
    initial = f"model.initial={run.directory.final_model}"
    again = jobs.run(ORDERED, f"clients.parallel={parallel}", initial, model=TIED)
    assert again.summary.status == "finished", again.summary.error


@pytest.mark.nightly
def test_a_script_may_choose_another_start_method(jobs):
    run = jobs.run("""
    import multiprocessing
    import flstream.client as flare
    if __name__ == "__main__":
        assert multiprocessing.get_context().get_start_method() == "fork"
    """)
    assert "ended" in run.summary.error
    run = jobs.run("""
    import multiprocessing
    import flstream.client as flare
    if __name__ == "__main__":
        multiprocessing.set_start_method("spawn")
        with multiprocessing.Pool(1) as pool:
            assert pool.map(abs, [-3]) == [3]
        flare.init()
        while flare.is_running():
            model = flare.receive()
            model.params["steps"] += 1
            flare.send(flare.FLModel(params=model.params))
    """)
    assert run.summary.status == "finished", run.summary.error


STARTS = """
import multiprocessing, pathlib, subprocess, time
import flstream.client as flare

flare.init()
model = flare.receive()
pool = multiprocessing.Pool(1)
sleeper = subprocess.Popen(["sleep", "777"])
children = [each.pid for each in multiprocessing.active_children()] + [sleeper.pid]
flare.log("children", " ".join(map(str, children)))
time.sleep(60)
"""


@pytest.mark.nightly
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
