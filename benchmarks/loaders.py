"""Measure epochs of DataLoaders with workers in the sites of a job and in plain processes.

    python benchmarks/loaders.py [REPEAT]

A site's process is forked from one that has imported torch; its loaders' workers are forked from it
in turn, as they are from any other process on Linux. A plain process runs the same epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rows import Row, print_table, scratch_folder

_SITES = 2
# The images are made anew for each access, which is what loaders have workers for.
_EPOCHS = """
import time

import torch


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 32, 32, generator=generator)
        for _ in range(20):
            image = image.flip(1).roll(1, 2) * 0.99
        return image, index % 10


def epoch():
    loader = torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=2)
    net = torch.nn.Conv2d(3, 8, 3)
    began = time.perf_counter()
    for images, _ in loader:
        net(images).mean().backward()
    return time.perf_counter() - began
"""
_SITE = """
import flstream.client as flare
from epochs import epoch

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params=model.params, metrics={"seconds": epoch()}))
"""
_PLAIN = """
import sys

import torch
from epochs import epoch

torch.set_num_threads(1)
print(*[epoch() for _ in range(int(sys.argv[1]))])
"""
_JOB = """
name = loaders, rounds = 1, clients.count = 2
model.factory = "model:build"
train.script = client.py
"""


def main(repeat: int) -> None:
    """Measure both in turn, and print the medians of ``repeat`` epochs of each site or process."""
    sites: list[float] = []
    plain: list[float] = []
    with scratch_folder() as name:
        folder = Path(name).absolute()
        files = {"epochs.py": _EPOCHS, "client.py": _SITE, "plain.py": _PLAIN, "job.conf": _JOB}
        files["model.py"] = "import torch\n\ndef build():\n    return {'w': torch.zeros(4)}\n"
        for file, text in files.items():
            (folder / file).write_text(text)
        for turn in range(repeat):
            sites += _in_sites(folder, folder / f"run-{turn}")
            plain += _in_plain_processes(folder)
    ours, theirs = statistics.median(sites), statistics.median(plain)
    print(f"Medians of {len(sites)} first epochs, in {_SITES} processes at a time.")
    print_table(
        [
            Row(
                "epoch of a DataLoader with 2 workers, in a site",
                f"{ours:.2f} s",
                f"{theirs:.2f} s in a plain process",
                ours / theirs,
                most=1.3,
            )
        ]
    )


def _in_sites(folder: Path, run: Path) -> list[float]:
    command = [sys.executable, "-m", "flstream", "simulate", "job.conf", "--run-dir", str(run)]
    subprocess.run([*command, "--quiet"], cwd=folder, check=True)
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [each["metrics"]["seconds"] for each in lines if each["kind"] == "site_update"]


def _in_plain_processes(folder: Path) -> list[float]:
    command = [sys.executable, "plain.py", "1"]
    # As sites are, so that both have the same.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(_SITES)
    ]
    return [float(each) for process in processes for each in process.communicate()[0].split()]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
