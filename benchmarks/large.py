"""Measure models larger than memory at every site: files, one base, offloaded moments, the build.

    python benchmarks/large.py [--only PART]... [--scale N] [--json FILE]

``files`` takes 24 GiB of disk and has 1.5 GiB of memory for all processes, kept by a control group;
``base`` takes 10 GiB of memory, and the extra hf. ``--scale`` divides the models.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from rows import GIB, MIB, Part, Row, measure_parts
from running import JOBS, MeasuredRun, run

import flstream.bench
from flstream.model.checkpoint import FileSource

FILE_CLIENT = Path(flstream.bench.__file__).with_name("file_client.py")
SITES, ROUNDS = 4, 2

BASE_JOB = """
name = base
seed = 7
rounds = 2
clients {{ count = 8, parallel = {parallel} }}
model {{ factory = "gpt2_xl:adapter", base = {{ factory = "gpt2_xl:base", args {{ {size} }} }} }}
train {{ script = client.py, preload = [transformers, peft] }}
workflow {{ args {{ evaluate_every = 0 }} }}
"""
XL = "n_embd = 1600, n_layer = 48, n_head = 25"
SMALL = "n_embd = 320, n_layer = 6, n_head = 5"
BASE_MODEL = """
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import flstream.client as flare


def base(**size):
    return GPT2LMHeadModel(GPT2Config(**size))


def adapter():
    return get_peft_model(flare.base_model(), LoraConfig(r=8, fan_in_fan_out=True))
"""
BASE_CLIENT = """
import torch
from gpt2_xl import adapter
from peft import get_peft_model_state_dict

import flstream.client as flare

flare.init()
net = adapter()
net.train()
while flare.is_running():
    flare.receive(into=net)
    own = [tensor for tensor in net.parameters() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(own, lr=1e-3)
    for _ in range(2):
        tokens = torch.randint(0, 50257, (1, 64))
        optimizer.zero_grad()
        net(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    flare.send(flare.FLModel(params=get_peft_model_state_dict(net)))
"""

# Prints the peak of anonymous memory of 20 steps over that before, and a digest of the weights.
ADAMW = """
import hashlib, sys, tempfile, threading, time

import torch

import flstream.client as flare


def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.005)


torch.set_num_threads(1)
torch.manual_seed(7)
width, layers = int(sys.argv[1]), 12
one = torch.ones(1, requires_grad=True)
one.grad = torch.ones(1)
torch.optim.AdamW([one]).step()  # with the imports that a first step does
before = anonymous()
blocks = (torch.nn.Linear(width, 12 * width, bias=False) for _ in range(layers))
net = torch.nn.ParameterList(block.weight for block in blocks)
optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
if sys.argv[2] == "offloaded":
    folder = tempfile.mkdtemp(dir=".")
    flare.offloaded(optimizer, folder)
peak = 0
threading.Thread(target=watch, daemon=True).start()
for step in range(20):
    optimizer.zero_grad()
    for tensor in net:
        tensor.grad = tensor.detach().sign().mul_(1e-3 * (step + 1))
    optimizer.step()
peak = max(peak, anonymous())
digest = hashlib.blake2b()
for tensor in net:
    digest.update(tensor.detach().numpy())
print(peak - before, sum(tensor.nbytes for tensor in net), digest.hexdigest())
"""


def files(folder: Path, scale: int, size: int, sites: int, limit: int) -> Iterator[Row]:
    """Measure sites that keep a model in files and change every weight, under a limit for all."""
    expected = sum(range(1, sites + 1)) / sites * ROUNDS
    found: list[tuple[float, float]] = []
    done = run(
        JOBS / "exchange",
        folder,
        f"model.args.size={size // scale}",
        f"clients.count={sites}",
        f"rounds={ROUNDS}",
        "checkpoints.keep=1",
        f"train.script={json.dumps(str(FILE_CLIENT))}",
        *([f"memory_limit={limit}"] if limit // scale >= 256 * MIB or scale == 1 else []),
        check=lambda path: found.append(extremes(path / "global.safetensors")),
    )
    what = f"{size // scale / GIB:g} GiB x {sites} in files"
    memory, model = done.summary.memory, done.summary.model.bytes
    if isinstance(memory.group_peak, int) and isinstance(memory.group_peak_anonymous, int):
        own = memory.group_peak_anonymous
        yield Row(f"all processes, {what}", own, "bytes", limit, "the limit", most=1)
        yield Row(f"all processes and cached pages, {what}", memory.group_peak, "bytes", limit)
    yield Row(f"server over idle, {what}", memory.server.over_idle, "bytes", 64 * MIB, most=1)
    site = max(process.over_idle for process in memory.clients.values())
    yield Row(f"largest site over its imports, {what}", site, "bytes", model, "the model")
    (least, most) = found[0]
    yield Row(f"largest weight, {what}", most, "", expected, "exact mean", least=1, most=1)
    yield Row(f"smallest weight, {what}", least, "", expected, "exact mean", least=1, most=1)
    seconds = round_seconds(done)
    yield Row(f"a round, {what}", seconds, "s", seconds)


def base(folder: Path, scale: int, parallel: int) -> Iterator[Row]:
    """Measure LoRA around one base of GPT-2 XL's shape at eight sites."""
    shape = XL if scale == 1 else SMALL
    texts = {"job.conf": BASE_JOB.format(parallel=parallel, size=shape)}
    texts |= {"gpt2_xl.py": BASE_MODEL, "client.py": BASE_CLIENT}
    for file, text in texts.items():
        (folder / file).write_text(text)
    done = run(folder / "job.conf", folder)
    summary, what = done.summary, f"{parallel} of 8 sites at a time"
    full = 2 * 8 * next(event["bytes"] for event in done.events if event["kind"] == "base_ready")
    moved = (summary.transfer.down.bytes + summary.transfer.up.bytes) / ROUNDS
    yield Row(f"all PSS, one base, {what}", summary.memory.peak_total_pss, "bytes", 9.5 * GIB)
    yield Row(f"bytes of a round, one base, {what}", moved, "bytes", full, "whole model", most=5e-3)
    site = max(process.peak_uss for process in summary.memory.clients.values())
    yield Row(f"largest site (USS), one base, {what}", site, "bytes", full / 16, "the base")
    seconds = round_seconds(done)
    yield Row(f"a round, one base, {what}", seconds, "s", seconds)


def adamw(folder: Path, scale: int) -> Iterator[Row]:
    """Measure 20 steps of AdamW with its moments in files, beside torch's."""
    width = 928 // scale  # 124M weights in 12 layers
    found = dict[str, tuple[int, int, str]]()
    for kind in ("plain", "offloaded"):
        line = [sys.executable, "-c", ADAMW, str(width), kind]
        variables = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(
            line, capture_output=True, text=True, check=True, cwd=folder, env=variables
        )
        numbers = done.stdout.split()
        found[kind] = int(numbers[0]), int(numbers[1]), numbers[2]
    peak, weights, digest = found["offloaded"]
    if digest != found["plain"][2]:
        raise SystemExit("offloaded steps have other bits than torch's")
    bound = 2 * weights + 2 * weights / 12  # model, gradients, one layer's moments
    what = "20 steps of AdamW at 124M"
    yield Row(f"anonymous memory, {what}, offloaded", peak, "bytes", bound, "the bound")
    yield Row(f"anonymous memory, {what}, torch's", found["plain"][0], "bytes", bound, "the bound")


def extremes(path: Path) -> tuple[float, float]:
    """Return the least and the largest weight of a float32 file."""
    source, least, most = FileSource(path), np.inf, -np.inf
    with path.open("rb") as file:
        file.seek(source.header_bytes)
        while data := file.read(4 * MIB):
            weights = np.frombuffer(data, np.float32)
            least, most = min(least, float(weights.min())), max(most, float(weights.max()))
    return least, most


def round_seconds(done: MeasuredRun) -> float:
    """Return the seconds of the last round."""
    ends = [event["time"] for event in done.events if event["kind"] == "round_finished"]
    return float(ends[-1] - ends[-2])


PARTS: Mapping[str, Part] = {
    "files": partial(files, size=4 * GIB, sites=SITES, limit=3 * GIB // 2),
    "files-10GiB": partial(files, size=10 * GIB, sites=1, limit=3 * GIB // 2),
    "base-2": partial(base, parallel=2),
    "base-8": partial(base, parallel=8),
    "adamw": adamw,
}


if __name__ == "__main__":
    measure_parts(PARTS, "Measure models larger than memory at every site.")
