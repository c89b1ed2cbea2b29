"""Measure jobs/gpt2 at full size: its exchange alone, a short round of training, and an adapter.

    python benchmarks/gpt2.py [--only SIZE-KIND]... [--scale N] [--json FILE]

In the exchange, sites receive the model and send it back. For the rest, AdamW makes one step a
round. It needs the extra hf; 124M takes 8 GiB of memory, and 774M 10 GiB for the exchange. With
``--scale`` the model is the tiny one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from rows import MIB, Part, Row, measure_parts
from running import JOBS, run

SCRIPT = """
import flstream.client as flare

flare.init()
while flare.is_running():
    flare.send(flare.FLModel(params=flare.receive().params))
"""
KINDS = {
    "exchange": ("train.script={folder}/pass_on.py", "tracking.type=null", "train.preload=[]"),
    "train": ("train.args.max_steps=1",),
    "lora": ("train.args.max_steps=1", "model.args.lora_r=8"),
}
"""Settings of each kind of run."""


def measured(folder: Path, scale: int, size: str, kind: str) -> Iterator[Row]:
    """Measure two rounds: memory over idle, what moved in a round, and seconds of the exchange."""
    (folder / "pass_on.py").write_text(SCRIPT)
    settings = [setting.format(folder=folder.absolute()) for setting in KINDS[kind]]
    size = size if scale == 1 else "tiny"
    settings += ["rounds=2", f"model.args.size={size}", "workflow.args.evaluate_every=0"]
    job = JOBS / "gpt2" / ("lora.conf" if kind == "lora" else "job.conf")
    summary = run(job, folder, *settings).summary
    memory, transfer, last = summary.memory, summary.transfer, summary.rounds[-1]
    model, what = summary.model.bytes, f"{size}, {kind}"
    client = max(process.over_idle for process in memory.clients.values())
    moved = (transfer.down.bytes + transfer.up.bytes) // 2
    seconds = last.download + last.upload_and_fold + last.checkpoint
    yield Row(f"server over idle, {what}", memory.server.over_idle, "bytes", 64 * MIB)
    yield Row(f"largest client over idle, {what}", client, "bytes", model, "the model")
    yield Row(f"moved in a round, {what}", moved, "bytes", model, "the model")
    yield Row(f"a round without training, {what}", seconds, "s", seconds + last.train, "all")


PARTS: Mapping[str, Part] = {
    f"{size}-{kind}": partial(measured, size=size, kind=kind)
    for size, kinds in (("124M", KINDS), ("774M", ("exchange",)))
    for kind in kinds
}


if __name__ == "__main__":
    measure_parts(PARTS, "Measure jobs/gpt2.")
