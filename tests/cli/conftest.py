"""The command line as a process, and a job small enough to be run in a second or two."""

import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import TERMINAL, Flstream, WriteJob, environment

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
    model = flare.receive()
    {line}
    flare.send(flare.FLModel(params=model.params))
"""


@pytest.fixture
def flstream(tmp_path: Path) -> Flstream:
    """Return a function that runs the command line to its end."""

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flstream", *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def flstream_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Flstream:
    """Return a function that runs a command in this process, where no other has to be started.

    An interpreter takes half a second to start, which is more than most commands take.
    """
    monkeypatch.chdir(tmp_path)
    for name in TERMINAL:
        monkeypatch.delenv(name, raising=False)

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["flstream", *map(str, words)])
        monkeypatch.setattr(sys, "stdout", sys.stdout)  # which the program replaces
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return subprocess.CompletedProcess(sys.argv, code or 0, *capfd.readouterr())

    return run


@pytest.fixture
def write_job(tmp_path: Path) -> WriteJob:
    """Return a function that writes a job whose clients do what a line says, and its path."""

    def write(line: str = "model.params['weight'] += 1", text: str = "") -> Path:
        folder = tmp_path / "job"
        folder.mkdir()
        (folder / "model.py").write_text(MODEL)
        (folder / "client.py").write_text(CLIENT.format(line=line))
        path = folder / "job.conf"
        path.write_text(JOB + text)
        return path

    return write
