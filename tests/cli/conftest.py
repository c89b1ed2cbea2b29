"""The command line, as a process and in this one, and a job that runs in a second or two."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_fixtures import share_host
from terminal import VARIABLES

from flstream.__main__ import main

JOB = """
name = mini
seed = 7
rounds = 2
clients { count = 2 }
model { factory = "model:build" }
train { script = client.py }
workflow { args { evaluate_every = 0 } }
"""

MODEL = """
import torch

def build():
    return {"weight": torch.zeros(40, 50), "bias": torch.zeros(50)}
"""

CLIENT = """\
import flstream.client as flare
flare.init()
while flare.is_running():
    model, metrics = flare.receive(), None
    {line}
    flare.send(flare.FLModel(params=model.params, metrics=metrics))
"""


def write(folder: Path, line: str, text: str) -> Path:
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (folder / "client.py").write_text(CLIENT.format(line=line))
    (folder / "job.conf").write_text(JOB + text)
    return folder / "job.conf"


@pytest.fixture
def write_job(tmp_path):
    """Return a function that writes a job whose clients do what a line says, and its path."""
    return lambda line="model.params['weight'] += 1", text="": write(tmp_path / "job", line, text)


@pytest.fixture
def flstream_here(tmp_path, monkeypatch, capfd, fork_server):
    """Return a function that runs a command in this process, where no other has to be started.

    An interpreter takes half a second to start, which is more than most commands take; and a fork
    server of its own two, so that commands use the one that runs of other tests have left.
    """

    share_host(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["flstream", *map(str, words)])
        monkeypatch.setattr(sys, "stdout", sys.stdout)  # which the program replaces
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        done = subprocess.CompletedProcess(sys.argv, ended.value.code or 0, *capfd.readouterr())
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def refused(flstream_here):
    """Return a function that runs a command with a mistake, and what it says of the mistake."""

    def refused(*words: object) -> str:
        done = flstream_here(*words)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    return refused
