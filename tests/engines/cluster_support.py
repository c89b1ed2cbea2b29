"""A cluster on one machine: a run whose engine is join, and agents, each a command of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

MODEL = """
import torch


def build(elements=1000):
    return {"w": torch.zeros(elements), "b": torch.zeros(3, 5, dtype=torch.float64)}
"""

# Each site adds a number of its own, so that a mean tells who is in it; {extra} is a test's.
SCRIPT = """
import os, signal, time
from pathlib import Path
import psutil
import flstream.client as flare

HERE = Path(__file__).parent


def agent():
    return psutil.Process().parent().parent()


def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.01)


flare.init()
while flare.is_running():
    model = flare.receive()
    site, number = flare.get_site_name(), int(flare.get_site_name()[5:])
    round = model.current_round + 1
{extra}
    for tensor in model.params.values():
        tensor += 2.0 ** number
    flare.send(flare.FLModel(params=model.params))
"""

JOB = """
name = cluster
seed = 3
rounds = {rounds}
clients {{ count = 4, min_updates = 1 }}
model {{ factory = "model:build" }}
train {{ script = client.py }}
workflow {{ args {{ evaluate_every = 0 }} }}
"""


class Cluster:
    """A job in a folder of a test's own, and the commands that run it.

    Attributes:
        folder: The folder.
        run: The run directory.
        key_file: The file with the key of the run.
    """

    def __init__(self, folder: Path, *, extra: str = "", rounds: int = 2) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.key_file = folder / "key"
        self._commands: list[subprocess.Popen[str]] = []
        self._pids: set[int] = set()
        folder.mkdir(exist_ok=True)
        (folder / "model.py").write_text(MODEL)
        body = textwrap.indent(textwrap.dedent(extra), "    ")
        (folder / "client.py").write_text(SCRIPT.replace("{extra}", body))
        (folder / "job.conf").write_text(JOB.format(rounds=rounds))

    def simulate(self, *options: str, nodes: int = 2, run: Path | None = None) -> Any:
        """Start the run, which waits for the nodes."""
        return self.flstream(
            *("simulate", "job.conf", "--run-dir", str(run or self.run)),
            *("--engine", "join", "--bind", "127.0.0.1:0", "--key-file", str(self.key_file)),
            *("--nodes", str(nodes), *options),
        )

    def local(self, *options: str, run: str = "local") -> subprocess.CompletedProcess[str]:
        """Run the job on this machine alone."""
        where = ("--run-dir", str(self.folder / run))
        command = self.flstream("simulate", "job.conf", *where, *options)
        out, err = command.communicate(timeout=120)
        return subprocess.CompletedProcess(command.args, command.returncode, out, err)

    def join(self, sim: Any, *options: str) -> Any:
        """Start an agent for a run that was started here."""
        return self.flstream("join", self.address(sim), "--key-file", str(self.key_file), *options)

    def hide(self, sim: Any) -> None:
        """Have no agent that joins from now on see the run directory, as on a machine of its own.

        Its number by which a node finds out is gone.
        """
        self.address(sim)
        (self.run / ".nonce").unlink()

    def address(self, sim: Any) -> str:
        """Return where the nodes of a run join, which it prints first."""
        if not hasattr(sim, "address"):
            line = sim.stdout.readline()
            assert "flstream join" in line, line + sim.stderr.read()
            sim.address = line.split("flstream join ")[1].split()[0]
        return str(sim.address)

    def flstream(self, *words: str) -> Any:
        """Start a command."""
        command = subprocess.Popen(
            [sys.executable, "-m", "flstream", *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What is seen of processes of a test is those that have this.
            env={**os.environ, "FLSTREAM_TEST_CLUSTER": str(self.folder)},
        )
        self._commands.append(command)
        return command

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events of the run so far."""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            for line in (self.run / "events.jsonl").read_text().splitlines():
                yield json.loads(line)

    def await_event(self, is_it: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """Wait for an event of the run, and return it."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for event in self.events():
                if is_it(event):
                    return event
            time.sleep(0.02)
        raise AssertionError(f"no such event among {[each['kind'] for each in self.events()]}")

    def await_file(self, name: str) -> Path:
        """Wait for a file that the training script writes."""
        until = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"no {name}"
            time.sleep(0.02)
        return self.folder / name

    def summary(self, run: Path | None = None) -> dict[str, Any]:
        """Return what came of a run."""
        text = ((run or self.run) / "summary.json").read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def digest(self, run: str = "run") -> str:
        """Return the digest of a run's last model."""
        return str(self.summary(self.folder / run)["model"]["digest"])

    def living(self) -> list[str]:
        """Return the processes of the test that live."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = process.environ().get("FLSTREAM_TEST_CLUSTER") == str(self.folder)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return found

    def nothing_lives(self, seconds: float) -> bool:
        """Return whether all processes end in time."""
        until = time.monotonic() + seconds
        while living := self.living():
            if time.monotonic() >= until:
                print("\n".join(living))
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Kill what is left."""
        for command in self._commands:
            if command.poll() is None:
                command.kill()
            command.communicate()
        for each in self.living():
            with suppress(ProcessLookupError):
                os.kill(int(each.partition(":")[0]), 9)


def finish(command: Any, seconds: float = 90) -> tuple[int, str]:
    """Wait for a command, and return its status and what it wrote."""
    out, err = command.communicate(timeout=seconds)
    return command.returncode, out + err
