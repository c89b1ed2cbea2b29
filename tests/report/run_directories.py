"""Run directories for the report's tests, written event by event."""

import json
from collections.abc import Sequence
from pathlib import Path

from journal_support import record, run_started

from flstream.runs.summary import (
    BestSummary,
    MemorySummary,
    ModelSummary,
    RoundSummary,
    Summary,
    TransferSummary,
)
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    SitePhaseChanged,
    Transfer,
    encode_lines,
)
from flstream.telemetry.memory import ProcessMemory

MIB = 1 << 20
BEGAN = 1_700_000_000.0
MODEL = 64 * MIB
DOWN = Transfer(MODEL, 3, 32, 1, 0.5)
UP = Transfer(MODEL, 2, 32, 0, 0.25)

JOB = """\
name = "digits"
rounds = 3
clients {
  # How many clients (sites) the job has.
  count = 2
}
workflow.args.key_metric = "accuracy"
streaming.mode = "pull"
"""


def started(time: float = BEGAN, sites: Sequence[str] = ("site-1", "site-2")) -> list[AnyEvent]:
    """The run begins: its processes, its model."""
    return [
        ProcessReady(process="server", pid=1, idle_rss=100 * MIB, time=time),
        run_started(job="digits", seed=7, clients=len(sites), chunk_size=2 * MIB, time=time),
        *(ProcessReady(process=site, pid=2, idle_rss=120 * MIB, time=time + 1) for site in sites),
        ModelReady(bytes=MODEL, tensors=4, digest="0" * 32, time=time + 1),
    ]  # fmt: skip


def one_round(number, time, sites=("site-1", "site-2"), metric="accuracy") -> list[AnyEvent]:
    """A round of ten seconds in which each site trains for five, and its evaluation of one."""
    phases = (("downloading", 0), ("training", 2), ("ready", 7))
    return [
        RoundStarted(round=number, sites=list(sites), time=time),
        *(
            SitePhaseChanged(round=number, site=site, state=state, time=time + after)
            for site in sites
            for state, after in phases
        ),
        RoundFinished(
            round=number, digest=f"{number:032d}", download=2.0, train=5.0, upload_and_fold=2.5,
            checkpoint=0.5, weights={site: 10.0 * n for n, site in enumerate(sites, 1)},
            metrics={"loss": 1 / number}, down=DOWN, up=UP, time=time + 10,
        ),
        Evaluated(
            round=number, metrics={metric: 0.5 + number / 10}, seconds=1.0, down=DOWN,
            time=time + 11, version=number,
        ),
        record(number, "evaluate", number, None, time=time + 11),
    ]  # fmt: skip


def ended(time: float, status: str = "finished", error: str = "") -> list[AnyEvent]:
    return [RunFinished(status=status, error=error, time=time)]


def samples(begin: float, end: float, process: str, rss: int, step: float = 0.5) -> list[str]:
    count = int((end - begin) / step) + 1
    return [
        json.dumps({"time": begin + step * n, "process": process, "rss": rss}) for n in range(count)
    ]


def write_run(folder: Path, events, memory=(), summary=None, job=JOB) -> Path:
    """Write a run directory, and return it."""
    folder.mkdir()
    (folder / "job.conf").write_text(job)
    (folder / "events.jsonl").write_bytes(encode_lines(events))
    (folder / "memory.jsonl").write_text("".join(line + "\n" for line in memory))
    if summary is not None:
        (folder / "summary.json").write_text(summary.to_json())
    return folder


def summary_of(rounds=3, status="finished", error=None, clients=2, metrics=("accuracy",)):
    """The summary of as many rounds of `one_round`."""
    numbers = range(1, rounds + 1)
    sites = {
        f"site-{n}": ProcessMemory(120 * MIB, (188 + n) * MIB, 80 * MIB)
        for n in range(1, clients + 1)
    }
    moved = sum([DOWN] * 2 * rounds, Transfer()), sum([UP] * rounds, Transfer())
    return Summary(
        status=status,
        error=error,
        job="digits",
        seed=7,
        rounds_completed=rounds,
        clients=clients,
        model=ModelSummary(MODEL, 4, f"{rounds:032d}"),
        metrics=[
            {**dict.fromkeys(metrics, 0.5 + n / 10), "round": n, "train": {"loss": 1 / n}}
            for n in numbers
        ],
        best=BestSummary(rounds, metrics[0], 0.5 + rounds / 10) if rounds else None,
        transfer=TransferSummary("pull", 2 * MIB, *moved),
        rounds=[RoundSummary(n, 2.0, 5.0, 2.5, 0.5, 1.0) for n in numbers],
        memory=MemorySummary(ProcessMemory(100 * MIB, 116 * MIB, 30 * MIB), sites, 300 * MIB),
        wall_seconds=38.0,
    )


def finished_run(folder: Path) -> Path:
    """A run of three rounds in which nothing went wrong."""
    rounds = [event for n in (1, 2, 3) for event in one_round(n, BEGAN + 12 * n - 10)]
    end = BEGAN + 37.5
    peaks = {"launcher": (-0.5, 60), "server": (0, 110), "site-1": (1, 184), "site-2": (1, 190)}
    memory = [
        line
        for name, (begin, mib) in peaks.items()
        for line in samples(BEGAN + begin, end, name, mib * MIB)
    ]
    return write_run(folder, [*started(), *rounds, *ended(end)], memory, summary_of())
