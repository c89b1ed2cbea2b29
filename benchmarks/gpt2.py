"""Measure jobs/gpt2 at full size: its exchange alone, a short round of training, and an adapter.

    python benchmarks/gpt2.py [--size 124M] [--size 774M] [--exchange-only] [--json FILE]

In the exchange, sites receive the model and send it back. For the rest, AdamW makes one step a
round. It needs the extra hf; 124M takes 8 GiB of memory, and 774M 10 GiB for the exchange.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rows import formatted, print_table
from running import JOBS, over_idle, run

SCRIPT = """
import flstream.client as flare

flare.init()
while flare.is_running():
    flare.send(flare.FLModel(params=flare.receive().params))
"""
KINDS = {
    "exchange": ("train.script={folder}/pass_on.py", "tracking.type=null", "train.preload=[]"),
    "train": ("train.args.max_steps=1",),
    "lora": ("train.args.max_steps=1", "model.args.peft=lora", "model.args.lora_r=8"),
}
"""Settings of each kind of run."""
UNITS = {
    "model": "bytes",
    "server": "bytes",
    "client": "bytes",
    "a round": "bytes",
    "exchange": "s",
}


def measure(size: str, kind: str, folder: Path) -> dict[str, Any]:
    """Run two rounds, and return bytes, peaks of RSS over idle, and seconds without training."""
    (folder / "pass_on.py").write_text(SCRIPT)
    settings = [setting.format(folder=folder) for setting in KINDS[kind]]
    settings += ["rounds=2", f"model.args.size={size}", "workflow.args.evaluate_every=0"]
    summary = run(JOBS / "gpt2", folder, *settings).summary
    memory, transfer, last = summary["memory"], summary["transfer"], summary["rounds"][-1]
    return {
        "size": size,
        "sites": kind,
        "model": summary["model"]["bytes"],
        "server": over_idle(memory["server"]),
        "client": max(map(over_idle, memory["clients"].values())),
        "a round": (transfer["down"]["bytes"] + transfer["up"]["bytes"]) // 2,
        "exchange": last["download"] + last["upload_and_fold"] + last["checkpoint"],
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", action="append", help="124M (default), 774M or tiny; repeatable")
    parser.add_argument("--exchange-only", action="store_true", help="leave out training")
    parser.add_argument("--json", type=Path, help="write the rows into this file, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flstream-gpt2-") as folder:
        rows = [
            measure(size, kind, Path(folder))
            for size in options.size or ["124M"]
            for kind in (["exchange"] if options.exchange_only else KINDS)
        ]
    cells = [[row["size"], row["sites"]] for row in rows]
    for row, line in zip(rows, cells, strict=True):
        line += [formatted(row[key], unit) for key, unit in UNITS.items()]
    print_table(["size", "sites", *UNITS], cells)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
