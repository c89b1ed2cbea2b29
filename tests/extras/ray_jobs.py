"""Jobs for runs on a Ray cluster, and their results."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MODEL = """
import torch


def build(elements=1000):
    return {"w": torch.zeros(elements), "b": torch.zeros(3, 5, dtype=torch.float64)}
"""
# Each site adds a number of its own, so that a mean tells who is in it. In the third round site-1
# says where it is, once, and then trains for ever.
SCRIPT = """
import argparse
import os
import time
from pathlib import Path

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--marks", type=Path)
marks = parser.parse_args().marks

flare.init()
while flare.is_running():
    model = flare.receive()
    site, number = flare.get_site_name(), int(flare.get_site_name()[5:])
    if marks and site == "site-1" and model.current_round == 2:
        mark = marks / "trains"
        if not mark.exists():
            (marks / "new").write_text(os.readlink("/proc/self/ns/net") + f" {os.getpid()}")
            (marks / "new").rename(mark)
            time.sleep(1e6)
    for tensor in model.params.values():
        tensor += 2.0 ** number
    flare.send(flare.FLModel(params=model.params))
"""
JOB = """
name = ray, seed = 3, rounds = 8
clients { count = 4, min_updates = 1 }
model { factory = "model:build" }
train { script = client.py }
workflow { args { evaluate_every = 0 } }
"""

# A Flower app in one file, of four nodes.
APP = """
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@client.train()
def train(msg: Message, context: Context):
    number = context.node_config["partition-id"] + 1
    arrays = [array + np.float32(number) for array in msg.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": number})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@server.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([np.zeros((200, 3), np.float32), np.ones(4, np.float32)])
    rounds = context.run_config["num-server-rounds"]
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
"""
PROJECT = """
[project]
name = "ray-app"

[tool.flwr.app]
components = { serverapp = "ray_app:server", clientapp = "ray_app:client" }
config = { num-server-rounds = 3 }

[tool.flwr.federations]
default = "here"
here = { options.num-supernodes = 4 }
"""


def write_app(folder: Path) -> Path:
    """Write a Flower app to a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ray_app.py").write_text(APP)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def write_job(folder: Path, **files: str) -> Path:
    """Write a job to a folder; return the path of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"model.py": MODEL, "client.py": SCRIPT, "job.conf": JOB, **files}.items():
        (folder / name).write_text(text)
    return folder / "job.conf"


class Marks:
    """Marks that a site leaves while it trains for ever."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def awaited(self, seconds: float = 90.0) -> tuple[str, int]:
        """Wait for it; return the network that it is in, and its pid."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                network, pid = (self.folder / "trains").read_text().split()
                return network, int(pid)
            time.sleep(0.02)
        raise AssertionError("site-1 did not train")


def finish(command: subprocess.Popen[str], seconds: float = 150) -> tuple[int, str]:
    """Wait for a command; return its exit status and what it printed."""
    out, _ = command.communicate(timeout=seconds)
    return command.returncode, out


def summary_of(run: Path) -> dict[str, Any]:
    """Return the summary of a run."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def sites_of_rounds(run: Path) -> dict[int, list[str]]:
    """Return the sites that failed in each round."""
    failed: dict[int, list[str]] = {}
    for failure in summary_of(run)["failures"]:
        failed.setdefault(failure["round"], []).append(failure["site"])
    return failed
