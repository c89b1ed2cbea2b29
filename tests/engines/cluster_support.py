"""A cluster on one machine: a run whose engine is join, and agents, each a command of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

MODEL = """
import torch


def build(elements=1000):
    return {"w": torch.zeros(elements), "b": torch.zeros(3, 5, dtype=torch.float64)}
"""

# Each site adds a number of its own, so that a mean tells who is in it; {extra} is a test's. What
# a site reports, and what it waits for, is the end of a pipe with a name.
SCRIPT = """
import os
from pathlib import Path
import flstream.client as flare

HERE = Path(__file__).parent
PIPES = Path(os.environ["FLSTREAM_TEST_CLUSTER"])


def report(name):
    with open(PIPES / name, "w"):
        pass


def wait_for(name):
    with open(PIPES / name):
        pass


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
name = cluster, seed = 3, rounds = {rounds}
clients {{ count = 4, min_updates = 1 }}
model {{ factory = "model:build" }}
train {{ script = client.py }}
workflow {{ args {{ evaluate_every = 0 }} }}
"""
PIPES = ("trains", "never")


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
        self._pipes = folder.with_name(f"{folder.name}-pipes")
        self._commands: list[subprocess.Popen[str]] = []
        folder.mkdir(exist_ok=True)
        self._pipes.mkdir()
        for name in PIPES:
            os.mkfifo(self._pipes / name)
        (folder / "model.py").write_text(MODEL)
        body = textwrap.indent(textwrap.dedent(extra), "    ")
        (folder / "client.py").write_text(SCRIPT.replace("{extra}", body))
        (folder / "job.conf").write_text(JOB.format(rounds=rounds))

    def simulate(self, *options: str, nodes: int = 2) -> Any:
        """Start the run, which waits for the nodes."""
        return self.flstream(
            *("simulate", "job.conf", "--run-dir", str(self.run), "--nodes", str(nodes)),
            *("--engine", "join", "--bind", "127.0.0.1:0", "--key-file", str(self.key_file)),
            *options,
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
            env={**os.environ, "FLSTREAM_TEST_CLUSTER": str(self._pipes)},
        )
        self._commands.append(command)
        return command

    def await_report(self, name: str = "trains") -> None:
        """Wait until a site's script reports something."""
        pipe = os.open(self._pipes / name, os.O_RDONLY | os.O_NONBLOCK)
        poll = select.poll()
        poll.register(pipe, select.POLLIN | select.POLLHUP)
        # There is an end of the pipe to hear of once somebody has opened it.
        assert poll.poll(60_000), f"no site reported {name}"
        os.close(pipe)

    def processes_below(self, agent: Any) -> set[str]:
        """Return the names of the processes of the run that an agent has."""
        below = {each.pid for each in psutil.Process(agent.pid).children(recursive=True)}
        lines = (self.run / "events.jsonl").read_text().splitlines()
        ready = [each for each in map(json.loads, lines) if each["kind"] == "process_ready"]
        return {each["process"] for each in ready if each["pid"] in below}

    def summary(self, run: str = "run") -> dict[str, Any]:
        """Return what came of a run."""
        found: dict[str, Any] = json.loads((self.folder / run / "summary.json").read_text())
        return found

    def digest(self, run: str = "run") -> str:
        """Return the digest of a run's last model."""
        return str(self.summary(run)["model"]["digest"])

    def living(self) -> list[psutil.Process]:
        """Return the processes of the test that live."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = process.environ().get("FLSTREAM_TEST_CLUSTER") == str(self._pipes)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def nothing_lives(self, seconds: float = 5.0) -> bool:
        """Return whether all processes end in time."""
        return not psutil.wait_procs(self.living(), timeout=seconds)[1] and not self.living()

    def close(self) -> None:
        """Kill what is left."""
        for command in self._commands:
            if command.poll() is None:
                command.kill()
            command.communicate()
        for each in self.living():
            with suppress(psutil.Error):
                each.kill()


def finish(command: Any, seconds: float = 90) -> tuple[int, str]:
    """Wait for a command, and return its status and what it wrote."""
    out, err = command.communicate(timeout=seconds)
    return command.returncode, out + err
