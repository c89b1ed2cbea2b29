"""A job whose score follows from its arguments, and sweeps of it from the shared fork server."""

import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from run_fixtures import share_host_in_sweeps

from flstream.job import Job, load_job
from flstream.sweep.grid import Point, parse_axis
from flstream.sweep.running import Sweep

CLIENT = """
import argparse
from pathlib import Path

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--bonus", type=float, default=0.0)
args = parser.parse_args()
flare.init()
broken = Path("broken").absolute()
while flare.is_running():
    model = flare.receive()
    if Path(__file__).with_name("broken").exists() and args.lr == 2.0:
        raise RuntimeError("the disk of this site is broken")
    if flare.is_evaluate():
        score = args.lr / 10 + args.bonus + model.current_round / 1000
        flare.send(flare.FLModel(metrics={"accuracy": score}))
        continue
    params = {name: value + args.lr for name, value in model.params.items()}
    flare.send(flare.FLModel(params))
"""

JOB = """
name = swept
seed = 5
rounds = 2
clients { count = 2 }
engine { type = inline }
model { factory = "model:build" }
train { script = client.py, args { lr = 1.0 } }
"""

MODEL = """
import torch


def build():
    return {"w": torch.arange(6.0)}
"""


class Sweeps(NamedTuple):
    """Makes sweeps of the job in a folder."""

    folder: Path

    def job(self, *overrides: str) -> Job:
        return load_job(self.folder / "job.conf", overrides)

    def sweep(self, *axes: str, seeds: int = 1, prune: bool = False, into: str = "sweep") -> Sweep:
        def job_of(point: Point, rounds: int | None) -> Job:
            varied = [f"{key}={value}" for key, value in point.values.items()]
            settings = {"seed": point.seed, "rounds": rounds}
            return load_job(self.folder / "job.conf", varied, settings)

        return Sweep(self.folder / into, job_of, dict(map(parse_axis, axes)), seeds, prune=prune)


def write_job(folder: Path) -> None:
    for name, text in (("job.conf", JOB), ("client.py", CLIENT), ("model.py", MODEL)):
        (folder / name).write_text(textwrap.dedent(text))


@pytest.fixture
def sweeps(tmp_path, monkeypatch, fork_server):
    share_host_in_sweeps(monkeypatch)
    write_job(tmp_path)
    return Sweeps(tmp_path)
