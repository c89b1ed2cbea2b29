"""Measure jobs/gpt2 at full size: its exchange alone, a short round of training, and an adapter.

    python benchmarks/gpt2.py [--size 124M] [--size 774M] [--exchange-only] [--json FILE]

In the exchange, sites receive the model and send it back, and report the growth of their own memory
between the two, in which no gradient or optimizer hides anything. For the rest, AdamW makes one
step a round. It needs the extra hf; 124M takes 8 GiB of memory, and 774M 10 GiB for the exchange.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from simulating import JOBS, command

from flstream.units import format_bytes, format_seconds

CLIENTS = 2
PASS_ON = """
import psutil

import flstream.client as flare

flare.init()
while flare.is_running():
    before = psutil.Process().memory_info().rss
    model = flare.receive()
    update = flare.FLModel(params=model.params)
    grown = psutil.Process().memory_info().rss - before
    flare.send(update)
    print(f"grown {grown}", flush=True)
"""


class Row(NamedTuple):
    """A run of two rounds.

    Attributes:
        size: Size of the model.
        what: What the sites did.
        model: Bytes that a site receives.
        server: Most of the server's RSS over idle, in bytes.
        client: Most of a site's RSS over idle, in bytes.
        grown: Most that a site's RSS grew from receiving one model, in bytes; 0 if not measured.
        moved: Bytes of a round, both ways.
        seconds: Seconds of the last round without its training.
    """

    size: str
    what: str
    model: int
    server: int
    client: int
    grown: int
    moved: int
    seconds: float


def measure(size: str, what: str, work: Path) -> Row:
    """Run a job once."""
    folder = work / f"{size}-{what}"
    folder.mkdir()
    settings = ["rounds=2", f"model.args.size={size}", "workflow.args.evaluate_every=0"]
    if what == "exchange":
        (folder / "pass_on.py").write_text(PASS_ON)
        settings += [f"train.script={folder / 'pass_on.py'}", "tracking.type=null"]
        settings += ["train.preload=[]"]
    else:
        settings += ["train.args.max_steps=1"]
    if what == "lora":
        settings += ["model.args.peft=lora", "model.args.lora_r=8"]
    run = folder / "run"
    line = command(JOBS / "gpt2" / "job.conf", run, settings)
    # No limit of time: on two cores a step of the largest takes a minute.
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: {done.stderr}")
    summary = json.loads((run / "summary.json").read_text())
    memory, transfer = summary["memory"], summary["transfer"]
    grown = [
        int(line.split()[1])
        for log in (run / "sites").glob("*/log.txt")
        for line in log.read_text().splitlines()
        if line.startswith("grown ")
    ]
    last = summary["rounds"][-1]
    return Row(
        size=size,
        what=what,
        model=summary["model"]["bytes"],
        server=_over_idle(memory["server"]),
        client=max(map(_over_idle, memory["clients"].values())),
        grown=max(grown, default=0),
        moved=(transfer["down"]["bytes"] + transfer["up"]["bytes"]) // len(summary["rounds"]),
        seconds=last["download"] + last["upload_and_fold"] + last["checkpoint"],
    )


def _over_idle(memory: dict[str, int]) -> int:
    return memory["peak_rss"] - memory["idle_rss"]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", action="append", help="124M (default), 774M or tiny; repeatable")
    parser.add_argument("--exchange-only", action="store_true", help="leave out training")
    parser.add_argument("--json", type=Path, help="write the rows into this file, too")
    args = parser.parse_args()
    kinds = ["exchange"] if args.exchange_only else ["exchange", "train", "lora"]
    rows = []
    head = ("size", "sites", "model", "server", "client", "grown", "a round", "exchange")
    print("  ".join(f"{name:>10}" for name in head), flush=True)
    with tempfile.TemporaryDirectory(prefix="flstream-gpt2-") as work:
        for size in args.size or ["124M"]:
            for what in kinds:
                row = measure(size, what, Path(work))
                rows.append(row)
                sizes = (row.model, row.server, row.client, row.grown, row.moved)
                shown = (format_bytes(each) if each else "-" for each in sizes)
                cells = [row.size, row.what, *shown, format_seconds(row.seconds)]
                print("  ".join(f"{cell:>10}" for cell in cells), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
