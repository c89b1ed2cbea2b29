"""A small job in Python: a linear model, and a script that moves it by what its arguments say."""

import subprocess
import sys
import textwrap
from functools import partialmethod

import pytest
from run_fixtures import share_host

from flstream.recipe import SimEnv, arguments

SCRIPT = """
import argparse

import torch
from model import Net

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--step", type=float, default=1.0)
parser.add_argument("--examples", type=int, default=1)
args = parser.parse_args()
flare.init()
net = Net()
while flare.is_running():
    model = flare.receive(into=net)
    loss = sum(float(each.abs().sum()) for each in net.state_dict().values())
    with torch.no_grad():
        for each in net.parameters():
            each += args.step
    meta = {"num_examples": args.examples}
    flare.send(flare.FLModel(params=net.state_dict(), metrics={"loss": loss}, meta=meta))
"""

MODEL = """
import torch


class Net(torch.nn.Sequential):
    def __init__(self, width=3):
        super().__init__(torch.nn.Linear(2, width), torch.nn.Linear(width, 1))


def build(width=3):
    return Net(width)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, fork_server, _without_pages, request):
    """The working folder, which has client.py and model.py.

    Runs draw no page, and are in this process, but where a test has the fixture ``processes``: they
    start from the fork server that others have left.
    """
    engine = "local" if "processes" in request.fixturenames else "inline"
    monkeypatch.setattr(SimEnv, "__init__", partialmethod(SimEnv.__init__, engine=engine))
    share_host(monkeypatch)
    (tmp_path / "client.py").write_text(SCRIPT)
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    arguments.notice.cache_clear()
    yield tmp_path
    sys.modules.pop("model", None)


@pytest.fixture
def write(folder):
    """Write a file into the working folder."""

    def write(name, text):
        path = folder / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def python(folder):
    """Run a program in an interpreter of its own."""

    def python(program, cwd=folder):
        command = [sys.executable, program]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)

    return python
