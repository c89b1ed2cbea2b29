"""Write NVFlare's table of GPT-2 Large at six sites, with flstream's figures beside the published.

    python benchmarks/nvflare_table.py [--rounds 26] [--scale 1] [--only memory] [--markdown FILE]

The sites receive the model and send it back, as in NVFlare's examples/advanced/tensor-stream
(COMPARISON.md). ``memory`` keeps it in a module at each site, ``files`` in a file. The runs are
kept below benchmarks/.nvflare-table: the same command goes on with those that were cut off. They
take 20 GiB of memory and 45 GiB of disk; ``--scale`` divides the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from rows import MIB, machine, markdown_table

from flstream.runs.summary import Summary
from flstream.telemetry.memory import ProcessMemory
from flstream.units import format_bytes

FOLDER = Path(__file__).parent / ".nvflare-table"
SITES = 6
WIDTH, BLOCKS, WORDS, PLACES = 1280, 36, 50257, 1024

JOB = """
name = nvflare-table
rounds = {rounds}
clients {{ count = {sites} }}
model {{ factory = "gpt2_large:Model", args {{ scale = {scale} }} }}
train {{ script = {way}.py, args {{ scale = {scale} }} }}
workflow {{ args {{ evaluate_every = 0 }} }}
checkpoints {{ keep = 1 }}
"""

MODEL = f'''"""The tensors of GPT-2 Large in float32, with its head tied to the embedding."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        width = {WIDTH} // scale
        self.words, self.places = nn.Embedding({WORDS}, width), nn.Embedding({PLACES}, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {{
                    "norm_1": nn.LayerNorm(width),
                    "attention": nn.Linear(width, 3 * width),
                    "projection": nn.Linear(width, width),
                    "norm_2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }}
            )
            for _ in range({BLOCKS})
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, {WORDS}, bias=False)
        self.head.weight = self.words.weight
'''

SCRIPTS = {
    "memory": """
import argparse

import torch
from gpt2_large import Model

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=int)
with torch.device("meta"):
    net = Model(parser.parse_args().scale)
net = net.to_empty(device="cpu")
net.head.weight = net.words.weight
flare.init()
while flare.is_running():
    flare.receive(into=net)
    flare.send(flare.FLModel(params=net.state_dict()))
""",
    "files": """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive(file="model.safetensors")
    flare.send(flare.FLModel(file=model.file))
""",
}
"""Training scripts, by the way in which a site keeps the model."""

NAMES = {"memory": "a module at each site", "files": "a file at each site"}


class Published(NamedTuple):
    """A row of NVFlare's table: 32 processors, 256 GiB; the same model, sites and rounds."""

    what: str
    server: str
    site: str
    seconds: str
    rounds: str


PUBLISHED = (
    Published("NVFlare, without streaming", "137.8 GiB", "19 GiB", "158 s", "9, then it crashed"),
    Published("NVFlare, tensor-stream", "81.75 GiB", "9 to 15 GiB", "154 s", "26"),
)


def simulate(way: str, rounds: int, scale: int) -> tuple[Summary, list[float]]:
    """Run a way, or go on with its run; return the summary and the seconds of each round."""
    folder = FOLDER / f"{way}-{rounds}-{scale}"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "job.conf": JOB.format(rounds=rounds, sites=SITES, scale=scale, way=way),
        "gpt2_large.py": MODEL,
        f"{way}.py": SCRIPTS[way],
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    run = folder / "run"
    line = [sys.executable, "-m", "flstream", "simulate", str(folder)]
    if subprocess.run([*line, "--run-dir", str(run), "--resume"], check=False).returncode:
        raise SystemExit(f"the run in {run} is not finished; the same command goes on with it")
    summary = msgspec.json.decode((run / "summary.json").read_bytes(), type=Summary)
    events = [json.loads(text) for text in (run / "events.jsonl").read_text().splitlines()]
    ends = [event["time"] for event in events if event["kind"] in ("round_finished", "model_ready")]
    return summary, [end - begin for begin, end in pairwise(ends)]


def site_text(way: str, sites: Iterable[ProcessMemory]) -> str:
    """Return what the largest site takes: its process, or what comes on top of its imports."""
    if way == "memory":
        return f"{format_bytes(max(site.peak_uss for site in sites))} (USS)"
    return f"{format_bytes(max(site.over_idle for site in sites))} over its imports"


def main() -> None:
    """Measure what the command line names, and print the table."""
    parser = argparse.ArgumentParser(description="NVFlare's table of GPT-2 Large at six sites.")
    parser.add_argument("--rounds", type=int, default=26)
    parser.add_argument("--scale", type=int, default=1, help="divisor of the model's width")
    parser.add_argument("--only", choices=SCRIPTS, action="append", default=[])
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table there, too")
    options = parser.parse_args()
    rows = [[*row] for row in PUBLISHED]
    for way in options.only or SCRIPTS:
        summary, seconds = simulate(way, options.rounds, options.scale)
        memory = summary.memory
        server = f"{format_bytes(memory.server.over_idle)} over idle"
        mark = "" if memory.server.over_idle <= 64 * MIB else " (more than 64 MiB)"
        site = site_text(way, memory.clients.values())
        each = f"{median(seconds):.1f} s"
        rows.append([f"flstream, {NAMES[way]}", server + mark, site, each, str(len(seconds))])
    text = markdown_table(["", "server", "a site", "a round", "rounds"], rows)
    text += (
        "\nThe machines differ: NVFlare's published figures are of 32 processors and 256 GiB; "
        f"those of flstream are of {machine()}.\n"
    )
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
