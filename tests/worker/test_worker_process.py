"""A worker's process: where its output goes, what memory it takes, and how it ends."""

from __future__ import annotations

import pytest
import torch
from serving import Server, write

from flstream.worker.messages import Failed, Ready, Stop

MIB = 1 << 20


def model(elements: int = 4) -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(elements)}


def stop(server: Server) -> Stop:
    server.control.send(Stop())
    return server.hear(Stop)


PRINTS = """
import ctypes, os, sys, flstream.client as flare

class Mine(flare.Learner):
    def __init__(self):
        print("made")
    def train(self, model):
        print("hello from", self.site.name)
        ctypes.CDLL(None).printf(b"C says hello\\n")
        os.system("echo and so does a child")
        if self.site.index == 1:
            raise OSError("no data")
        return flare.FLModel(model.params)
"""


def test_what_is_printed_is_in_the_log_of_the_site_whose_turn_it_is(start_worker, run, tmp_path):
    server = start_worker(learner=f"{write(tmp_path, PRINTS)}:Mine")
    trained = server.train(model(), "site-1", "site-2", "site-3")
    assert [site.site for site in trained.sites] == ["site-1", "site-3"]
    stop(server)
    for number in (1, 2, 3):
        log = run.site_log(f"site-{number}").read_text()
        said = {f"hello from site-{number}", "C says hello", "and so does a child"}
        assert said <= set(log.splitlines())
        assert ("OSError: no data" in log) == (number == 2)
        assert log.count("hello from") == 1
    assert run.log("worker-1").read_text() == "made\n"


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_sites_own_process_prints_into_its_log_from_the_start(
    start_worker, run, tmp_path, is_folder
):
    log = run.site_log("site-4")
    if is_folder:
        log.mkdir(parents=True)
    server = start_worker("site-4", script=str(write(tmp_path, "print('early')\n1 / 0")))
    failed = server.hear(Failed)
    assert (failed.site, failed.effect) == ("", 0)
    if is_folder:
        assert f"{log}: Is a directory" in failed.reason
    else:
        assert failed.reason == "client.py, line 2 raised ZeroDivisionError: division by zero"
        server.hear(Stop)
        assert log.read_text().startswith("early\n")
        assert "Traceback" in log.read_text()


@pytest.mark.parametrize("site", [None, "site-1"])
def test_a_worker_needs_one_model_and_a_little_more(start_worker, tmp_path, site):
    """With one site a task, however many tasks there are."""
    text = """
            import flstream.client as flare

            flare.init()
            while flare.is_running():
                model = flare.receive()
                model.params["w"] += 1
                flare.send(flare.FLModel(model.params))
            """
    server = start_worker(site, script=str(write(tmp_path, text)))
    idle = server.hear(Ready).idle_rss
    for number in (1, 2, 3):
        trained = server.train(model(32 * MIB), "site-1", round_number=number)
        assert float(server.fetch(trained)["w"][-1]) == 1
    assert stop(server).peak_rss - idle <= (128 + 48) * MIB


FORKS = """
import os, flstream.client as flare

class Mine(flare.Learner):
    def train(self, model):
        if (child := os.fork()):
            os.waitpid(child, 0)
        return flare.FLModel(model.params)
"""


def test_a_child_that_training_code_forks_takes_no_part(start_worker, tmp_path):
    """And tensors that the job excludes do not travel."""
    server = start_worker(learner=f"{write(tmp_path, FORKS)}:Mine", exclude=("^frozen",))
    for names in (["site-1"], ["site-2", "site-3"]):
        trained = server.train({**model(), "frozen.w": torch.ones(3)}, *names)
        assert [(site.site, site.partial) for site in trained.sites] == [(n, True) for n in names]
        assert server.failures() == []
        assert [list(update) for update in server.updates(trained)] == [["w"]] * len(names)
    stop(server)
