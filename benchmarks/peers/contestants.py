"""Contestants, one run of each measured, and the medians of all runs."""

from __future__ import annotations

import json
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tree import TreeSampler, run_to_end

HERE = Path(__file__).parent
ADAPTERS, VENVS, REQUIREMENTS = HERE / "adapters", HERE / ".venvs", HERE / "requirements"
FLOWER_APP = HERE / "flower_app"

WORK = HERE / ".work"
"""Folder of runs while they are measured, and of the logs of those that failed."""

DEADLINE = 900.0
"""Seconds after which a run has failed. The slowest that does not fail takes about a tenth."""

COHORT = 100
"""Clients of a round in the race."""


PEERS = {
    "flstream": ("flstream", "flstream"),
    "nvflare": ("NVFlare", "nvflare"),
    "flower": ("Flower", "flwr"),
    "pfl": ("pfl-research", "pfl"),
}
"""Names of programs, and of their packages."""


class Contestant(NamedTuple):
    """A peer with one choice of settings, in one job."""

    name: str  # name on the command line and in JSON
    peer: str  # key of :data:`PEERS`; its adapter is ``adapters/<peer>_peer.py``
    label: str  # name in tables
    # Arguments of the adapter after the numbers of clients and of rounds, with ``{clients}`` and
    # ``{size}`` to be filled in.
    arguments: tuple[str, ...] = ()


_SIZES = ("exchange", "clients.count={clients}", "model.args.size={size}")
_RACE_JOB = ("../benchmarks/peers/race_job",)
_FLOWER_APP = ("../benchmarks/peers/flower_app", "clients.count={clients}")
_VIRTUAL = ("virtual", "workflow.args.evaluate_every=0")

EXCHANGE = (
    Contestant("flstream", "flstream", "flstream", _SIZES),
    Contestant("flower-app", "flstream", "flstream, Flower's app", _FLOWER_APP),
    Contestant("nvflare", "nvflare", "NVFlare, defaults"),
    Contestant("nvflare-tensors", "nvflare", "NVFlare, tensors", ("tensors",)),
    Contestant("nvflare-offload", "nvflare", "NVFlare, least memory", ("offload",)),
    Contestant("flower", "flower", "Flower, defaults", ("exchange",)),
    Contestant("flower-1cpu", "flower", "Flower, 1 CPU a client", ("exchange", "1")),
)
"""The exchange job: each client adds its number to every weight. The first one is the measure."""

RACE = (
    Contestant("race-flstream", "flstream", "flstream", _RACE_JOB),
    Contestant(
        "race-flstream-1", "flstream", "flstream, 1 worker", (*_RACE_JOB, "clients.parallel=1")
    ),
    Contestant("race-pfl", "pfl", "pfl-research"),
    Contestant("race-alone", "pfl", "the training alone, 1 process", ("alone",)),
    Contestant("race-flstream-numpy", "flstream", "flstream, NumPy", _VIRTUAL),
    Contestant("race-flower", "flower", "Flower, NumPy, 1 CPU a client", ("digits", "1")),
)
"""The job on digits: 1,000 clients of 18 examples, of whom each round takes 100."""


class Task(NamedTuple):
    """Numbers of clients and rounds, and bytes of the model where the job has a size."""

    clients: int
    rounds: int
    size: int = 0


@dataclass(frozen=True)
class Run:
    """One run; seconds and bytes."""

    startup: float = 0.0  # from the command to the beginning of the first round
    # Each from its beginning to that of the next, without the last, which has no next.
    rounds: tuple[float, ...] = ()
    server_idle: int = 0  # RSS of the server's process after its imports, before it had a model
    server_peak: int = 0  # the kernel's high-water mark of its RSS
    peak_pss: int = 0  # highest PSS of all processes together at one time
    accuracy: float = 0.0  # of the final model on held-out digits, in the race
    failure: str = ""  # one line that says why the run does not count, or nothing


@dataclass(frozen=True)
class Result:
    """All runs of one contestant: medians of those that did not fail.

    The first round of a run does not count: processes still start, and memory is new.
    """

    contestant: Contestant
    runs: list[Run]

    @property
    def good(self) -> list[Run]:
        """Runs that did not fail."""
        return [run for run in self.runs if not run.failure]

    @property
    def failures(self) -> list[str]:
        """Reasons of failed runs."""
        return [run.failure for run in self.runs if run.failure]

    @property
    def medians(self) -> dict[str, float]:
        """Median of each figure; empty if all runs failed."""
        if not self.good:
            return {}
        steady = statistics.median(second for run in self.good for second in run.rounds[1:])
        idle = (run.server_peak - run.server_idle for run in self.good)
        return {
            "startup": statistics.median(run.startup for run in self.good),
            "round": steady,
            "tasks_a_second": COHORT / steady,
            "server_over_idle": statistics.median(idle),
            "accuracy": statistics.median(run.accuracy for run in self.good),
            "peak_pss": statistics.median(run.peak_pss for run in self.good),
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON."""
        runs = [asdict(run) for run in self.runs]
        return {**self.contestant._asdict(), "median": self.medians or None, "runs": runs}


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment; flstream's is the current one."""
    return Path(sys.executable) if peer == "flstream" else VENVS / peer / "bin" / "python"


def install(peer: str) -> None:
    """Install a peer at the versions of ``requirements/``, unless it is there in just these."""
    requirements, folder = REQUIREMENTS / f"{peer}.txt", VENVS / peer
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    print(f"installing {peer} into {folder}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python_of(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # torch first and alone: a resolver that meets it among others may look at builds with CUDA.
    subprocess.run([*pip, "--constraint", str(requirements), "torch"], check=True)
    # Everything is named, so nothing is left to resolve.
    subprocess.run([*pip, "--no-deps", "--requirement", str(requirements)], check=True)
    stamp.write_text(requirements.read_text())


def exchange_shapes(size: int) -> dict[str, int]:
    """Return the elements of each tensor of the exchange job's model, of so many bytes."""
    model = runpy.run_path(str(HERE.parents[1] / "jobs" / "exchange" / "model.py"))
    return {spec.name: spec.shape[0] for spec in model["build"](size).layout.tensors}


def measure(contestant: Contestant, task: Task) -> Run:
    """Run a contestant, and remove all that it leaves behind: processes and files."""
    python, is_ours = python_of(contestant.peer), contestant.peer == "flstream"
    if not python.exists():
        return Run(failure=f"{contestant.peer} is not installed; leave --no-install out")
    arguments = [argument.format(**task._asdict()) for argument in contestant.arguments]
    script = str(ADAPTERS / f"{contestant.peer}_peer.py")
    with _folders() as (folder, scratch):
        journal, log = folder / "journal.jsonl", folder / "log.txt"
        (folder / "shapes.json").write_text(json.dumps(exchange_shapes(task.size)))
        environment = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "HOME": str(folder),
            "TMPDIR": str(scratch),
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(
                map(str, [ADAPTERS, FLOWER_APP, *([HERE.parents[1]] * is_ours)])
            ),
            "PEERS_JOURNAL": str(journal),
            "PEERS_SHAPES": str(folder / "shapes.json"),
            "PEERS_CLIENTS": str(task.clients),
            "PEERS_ROUNDS": str(task.rounds),
            # Nobody is told that it was run.
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = [str(python), script, str(task.clients), str(task.rounds), *arguments]
        began = time.time()
        with TreeSampler() as sampler:
            status = run_to_end(command, environment, folder, log, DEADLINE)
        run = read_journal(journal, began, sampler.peak_rss, sampler.peak_pss)
        failure = run.failure or (f"it ended with status {status}" if status else "")
        if status is None:
            failure = f"it was killed after {DEADLINE:.0f} s"
        if not failure:
            return run
        shutil.copy(log, WORK / f"{contestant.name}.log")
        return Run(failure=f"{failure}: {last_error(log)}")


def read_journal(path: Path, began: float, peaks: Mapping[int, int], peak_pss: int) -> Run:
    """Read a run from its journal and its samples.

    Args:
        path: Path of the journal; see ``adapters/task.py``.
        began: Time of the command, in seconds since the epoch.
        peaks: High-water marks of RSS in bytes, by pid.
        peak_pss: Highest PSS of all processes, in bytes.
    """
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    idle = [event for event in events if event["event"] == "idle"]
    begun = [event["time"] for event in events if event["event"] == "round"]
    results = [event for event in events if event["event"] == "result"]
    if not results:
        return Run(failure="it ended without a result")
    if wrong := results[0]["wrong"]:
        return Run(failure=f"the result is wrong: {wrong}")
    if len(begun) < 3 or not idle:
        return Run(failure="it did not say when its rounds began")
    rounds = tuple(later - earlier for earlier, later in pairwise(begun))
    peak = peaks.get(idle[0]["pid"], 0)
    accuracy = results[0].get("accuracy", 0.0)
    return Run(begun[0] - began, rounds, idle[0]["rss"], peak, peak_pss, accuracy)


def last_error(log: Path) -> str:
    """Return the line of a log that best explains a failure: the last one that names an error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or [line for line in lines if line] or ["it said nothing"])[-1][:200]


@contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    """Make a folder for a run, on the disk of this checkout, and a short name of one in it.

    Sockets have their paths cut off at 107 characters, and Ray uses 60 of them itself.
    """
    WORK.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=WORK, ignore_cleanup_errors=True) as name,
        tempfile.TemporaryDirectory(prefix="p") as short,
    ):
        scratch = Path(name) / "tmp"
        scratch.mkdir()
        link = Path(short) / "t"
        link.symlink_to(scratch)
        yield Path(name), link
