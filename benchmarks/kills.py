"""Kills processes of a run at random instants, resumes it, and compares the bits.

Each case starts a job of 20 rounds, kills a client's process, a worker that runs several clients,
the server, or everything, at an instant that a seed decides, and goes on with ``--resume`` until
the run is finished. The final model and the metrics have to be those of an undisturbed run.

    python benchmarks/kills.py [--cases 50] [--first 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

VICTIMS = ("client", "worker", "server", "all")
ROUNDS = 20
# Longest time into a run at which something is killed: about as long as one takes.
LATEST = 4.0
MOST_RESUMES = 5

MODEL = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {"w": torch.randn(400_000, generator=generator), "steps": torch.tensor(0)}
"""

# Has a state of its own, besides what the server gives it.
CLIENT = """
import json

import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"mean": model.params["w"].double().mean().item()}))
        continue
    state = flare.get_state_dir() / "momentum.json"
    momentum = json.loads(state.read_text()) if state.exists() else 0.0
    momentum = 0.9 * momentum + torch.randn(()).item()
    state.write_text(json.dumps(momentum))
    model.params["w"] += 0.01 * torch.randn(model.params["w"].shape) + 0.001 * momentum
    flare.send(flare.FLModel(params=model.params, meta={"num_examples": 3}))
"""

JOB = """
name = kills, seed = 5, rounds = %d
clients { count = 4, parallel = %d, bench_after = 0 }
model { factory = "model:build" }
train { script = client.py }
checkpoints { keep = 3 }
"""


def command(folder: Path, victim: str, run: Path, *more: str) -> list[str]:
    """The command line of a run."""
    job = folder / f"{'own' if victim != 'worker' else 'shared'}.conf"
    return [
        sys.executable,
        "-m",
        "flstream",
        "simulate",
        str(job),
        "--json",
        "--run-dir",
        str(run),
        *more,
    ]


def simulate(line: list[str]) -> tuple[int, dict[str, Any], str]:
    """Run it to its end."""
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    summary = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return done.returncode, summary, done.stderr


def processes(launcher: psutil.Process, run: Path, victim: str) -> list[psutil.Process]:
    """Whom to kill."""
    everyone = [launcher, *launcher.children(recursive=True)]
    if victim == "all":
        return everyone
    named: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for text in (run / "events.jsonl").read_text().splitlines():
            with suppress(json.JSONDecodeError):
                event = json.loads(text)
                if event["kind"] == "process_ready":
                    named[event["process"]] = event["pid"]
    wanted = [
        pid for name, pid in sorted(named.items()) if (name == "server") == (victim == "server")
    ]
    return [process for process in everyone if process.pid in wanted]


def disturbed(folder: Path, case: int) -> tuple[str, dict[str, Any], int, float]:
    """One case: the victim, the summary in the end, the number of resumes, the instant."""
    chance = random.Random(f"kill/{case}")
    victim = VICTIMS[case % len(VICTIMS)]
    run = folder / f"run-{case}"
    instant = chance.uniform(0.1, LATEST)
    with subprocess.Popen(
        command(folder, victim, run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as started:
        time.sleep(instant)
        with suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(started.pid)
            chosen = processes(launcher, run, victim)
            if victim in ("client", "worker"):
                chosen = [chance.choice(chosen)] if chosen else []
            left = launcher.children(recursive=True)
            for process in chosen:
                with suppress(psutil.NoSuchProcess):
                    os.kill(process.pid, signal.SIGKILL)
        started.wait(120)
    psutil.wait_procs(left, timeout=30)
    for resumes in range(MOST_RESUMES):
        code, summary, error = simulate(command(folder, victim, run, "--resume"))
        if code == 0:
            return victim, summary, resumes + 1, instant
    raise SystemExit(f"case {case} ({victim} at {instant:.2f} s) does not finish: {error}")


def main(cases: int, first: int) -> None:
    """Do all cases, and print the tally."""
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="flstream-kills-") as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        (folder / "client.py").write_text(CLIENT)
        (folder / "own.conf").write_text(JOB % (ROUNDS, 4))
        (folder / "shared.conf").write_text(JOB % (ROUNDS, 2))
        code, expected, error = simulate(command(folder, "client", folder / "undisturbed"))
        assert code == 0, error
        for case in range(first, first + cases):
            victim, summary, resumes, instant = disturbed(folder, case)
            same = summary["model"]["digest"] == expected["model"]["digest"]
            alike = (
                summary["metrics"] == expected["metrics"] and summary["best"] == expected["best"]
            )
            outcome = "equal" if same and alike else "DIFFERENT"
            tally[f"{victim}: {outcome}"] += 1
            print(
                f"case {case}: {victim} killed at {instant:.2f} s, {resumes} resume: {outcome}",
                flush=True,
            )
    for line, count in sorted(tally.items()):
        print(f"{line}: {count}")
    equal = sum(count for line, count in tally.items() if line.endswith("equal"))
    print(f"{equal} of {cases} finished with equal digests and metrics")
    sys.exit(equal != cases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill and resume.")
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    main(chosen.cases, chosen.first)
