"""One run of one contestant, measured."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from contestants import ADAPTERS, HERE, Contestant, python_of
from record import Run, failed, last_error, read_journal
from tree import TreeSampler, run_to_end

DEADLINE = 900.0
"""Seconds after which a run has failed. The slowest that does not fail takes about a tenth."""

WORK = HERE / ".work"
"""Where runs live while they are measured, and the logs of those that failed are kept."""


class Task(NamedTuple):
    """What contestants are to do.

    Attributes:
        clients: how many there are.
        rounds: how many to run.
        size: bytes of the model, where the job has a size.
    """

    clients: int
    rounds: int
    size: int = 0


def measure(contestant: Contestant, task: Task) -> Run:
    """Run a contestant, and take away all that it leaves behind: processes and files."""
    WORK.mkdir(exist_ok=True)
    if not python_of(contestant.peer).exists():
        return failed(f"{contestant.peer} is not installed; run benchmarks/peers/install.py")
    with _folders() as (folder, scratch):
        journal, log = folder / "journal.jsonl", folder / "log.txt"
        shapes = folder / "shapes.json"
        shapes.write_text(json.dumps(_shapes(task.size)))
        environment = {
            "PATH": f"{python_of(contestant.peer).parent}:/usr/bin:/bin",
            "HOME": str(folder),
            "TMPDIR": str(scratch),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ADAPTERS),
            "PEERS_JOURNAL": str(journal),
            "PEERS_SHAPES": str(shapes),
            # Nobody is told that it was run.
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = contestant.command(task.clients, task.rounds, task.size)
        began = time.time()
        with TreeSampler() as sampler:
            status = run_to_end(command, environment, folder, log, DEADLINE)
        run = failed(f"it was killed after {DEADLINE:.0f} s")
        if status is not None:
            run = read_journal(
                journal, began, sampler.peak_rss, sampler.peak_pss, sampler.pss_interval
            )
            if status and not run.failure:
                run = failed(f"it ended with status {status}")
        if run.failure:
            kept = shutil.copy(log, WORK / f"{contestant.name}.log")
            return failed(f"{run.failure}: {last_error(Path(kept))}")
        return run


@contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    """A folder for a run, on the disk of this checkout, and a short name of one in it.

    Sockets have their paths cut off at 107 characters, and Ray uses 60 of them itself.
    """
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=WORK, ignore_cleanup_errors=True) as name,
        tempfile.TemporaryDirectory(prefix="p") as short,
    ):
        scratch = Path(name) / "tmp"
        scratch.mkdir()
        link = Path(short) / "t"
        link.symlink_to(scratch)
        yield Path(name), link


def _shapes(size: int) -> dict[str, int]:
    """Elements of each tensor of the exchange job's model, by name."""
    path = HERE.parents[1] / "jobs" / "exchange" / "model.py"
    spec = importlib.util.spec_from_file_location("exchange_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: tensor.numel() for name, tensor in module.build(size).items()}
