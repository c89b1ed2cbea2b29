"""Runs of the matrix's jobs, and what they end in."""

import json
import tempfile
from functools import cache
from pathlib import Path

import xxhash
from matrix_rows import ROWS
from run_fixtures import shared_host_for

from flstream.engines.processes import ProcessHost
from flstream.job import load_job
from flstream.runs.resume import final_summary, plan_resume
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate

JOB = Path(__file__).parent / "job" / "job.conf"
JOBS = Path(__file__).parents[2] / "jobs"
DIGESTS = Path(__file__).parent / "digests.json"
WIDTHS = {"tiny": 64, "middle": 8192, "large": 9 << 16}
"""Float32 weights of a model's base: 400 bytes in all, more than 4 KiB, and more than 2 MiB."""

Ending = dict[str, object]
"""What a run ends in, as the table of digests has it."""


def path_of(shipped: str) -> Path:
    """The job file of a job of this checkout."""
    return JOBS / shipped.partition(",")[0] / "job.conf"


def overrides_of(row: str, size: str, *more: str) -> list[str]:
    """The overrides of a row and a size, and more of a case."""
    return [*ROWS[row].settings, f"model.args.width={WIDTHS[size]}", *more]


def run(
    folder: Path,
    overrides: list[str],
    job: Path = JOB,
    *,
    resume: bool = False,
    from_round: int | None = None,
) -> Ending:
    """Run a job to its end, or resume it unless it has finished; return what it ends in."""
    if not (resume and from_round is None and _has_finished(folder)):
        simulate_job(folder, overrides, job, resume=resume, from_round=from_round)
    return ending(folder)


def simulate_job(
    folder: Path,
    overrides: list[str],
    job: Path = JOB,
    *,
    resume: bool = False,
    from_round: int | None = None,
    host: ProcessHost | None = None,
) -> None:
    """Run or resume a job to any end, from the process host that tests share or another one."""
    loaded = load_job(job, overrides)
    directory = (RunDirectory.reopen if resume else RunDirectory.create)(loaded.name, folder)
    with directory.in_use():
        point = plan_resume(loaded, directory, from_round) if resume else None
        if point is not None and point.is_finished:  # a server may outlive its launcher to the end
            final_summary(directory, point)
            return
        simulate(loaded, directory, None, point, host or shared_host_for(loaded))


def _has_finished(folder: Path) -> bool:
    path = folder / "summary.json"
    return path.exists() and json.loads(path.read_text())["status"] == "finished"


def ending(folder: Path) -> Ending:
    """Read the ending of the run in a folder.

    Raises:
        AssertionError: It did not finish.
    """
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished", summary["error"]
    scores = folder / "cross_site" / "cross_val_results.json"
    return {
        "model": summary["model"]["digest"],
        "rounds": summary["rounds_completed"],
        "accuracy": [metrics.get("accuracy") for metrics in summary["metrics"]],
        "best": (summary["best"] or {}).get("round"),
        "scores": xxhash.xxh3_64_hexdigest(scores.read_bytes()) if scores.exists() else None,
    }


OF_PROCESSOR = frozenset({"hlora"})
"""Rows with a decomposition of LAPACK's, which processors round differently."""


def recorded(name: str) -> Ending:
    """Look up the ending of a job in the table; of a row in OF_PROCESSOR, run it undisturbed."""
    row, _, size = name.rpartition(", ")
    if row in OF_PROCESSOR:
        return _ending_here(row, size)
    ending: Ending = json.loads(DIGESTS.read_text())[name]
    return ending


@cache
def _ending_here(row: str, size: str) -> Ending:
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder) / "run", overrides_of(row, size, "engine.type=inline"))
