"""Sweeps from Python: a grid of a job's settings and seeds, and its runs and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.errors import UsageError
from flstream.job import Job, load_job
from flstream.recipe.arguments import checked
from flstream.recipe.fed_job import FedJob
from flstream.recipe.sim_env import RunResult, SimEnv, refuse_within_run
from flstream.report.console import make_console
from flstream.sweep.grid import Point
from flstream.sweep.record import SweepRecord
from flstream.sweep.results import point_line, setting_rows, write_results
from flstream.sweep.running import Sweep, SweepProgress

if TYPE_CHECKING:
    import pandas


class SweepResult(Sequence[RunResult]):
    """The runs of a sweep that have ended, as a sequence, in the order of the grid.

    Attributes:
        directory: Absolute path of the sweep's folder.
        settings: A row for each setting, as ``settings`` in ``table.json``: ``values`` by key,
            ``mean``, ``spread``, ``lowest`` and ``highest`` of the best key metric over seeds.
        best: Values of the best setting by key; None where nothing was scored.
        failures: Why each run failed, by the name of its folder.
    """

    def __init__(self, folder: Path, record: SweepRecord) -> None:
        self.directory = folder
        self.settings = setting_rows(record)
        self.best: Mapping[str, Any] | None = next(
            (row["values"] for row in self.settings if row["is_best"]), None
        )
        self.failures = {point.name: point.error for point in record.points if point.error}
        paths = [folder / point.name for point in record.points]
        self._runs = [RunResult(path) for path in paths if (path / "summary.json").exists()]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the settings as a DataFrame: a column for each key, and one for each number.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UsageError("to_pandas() needs pandas; install it with pip") from error
        return pandas.DataFrame([{**row.pop("values"), **row} for row in map(dict, self.settings)])

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<Sweep {self.directory.name}: {len(self)} runs, best {self.best}>"


@checked
def sweep(
    job: str | Path | FedJob,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    variants: Sequence[Mapping[str, Any]] = (),
    seeds: int = 1,
    parallel: int = 1,
    prune: bool = False,
    env: SimEnv | None = None,
    run_dir: str | Path | None = None,
) -> SweepResult:
    """Run a job with each combination of settings and seeds, as ``flstream sweep`` does.

    Args:
        job: Path of a job file or of the folder with its ``job.conf``; or a recipe, or a job.
        vary: Values to try, by dotted key of the job file; None for none.
        variants: Settings that belong together, by dotted key; each runs with all values to try.
        seeds: Runs of each setting: with the job's seed, +1, +2, and so on.
        parallel: Number of runs at a time.
        prune: Whether to drop the worse half of the settings after a part of the rounds.
        env: Clients of a recipe, and ``quiet``; None for what it has.
        run_dir: Folder of the sweep; None for ``runs/<job>-sweep``. The same call again resumes.

    Returns:
        The runs, also where some have failed.

    Raises:
        JobError: A setting has mistakes; the message names all of them.
        UsageError: The folder has something else in it, or this is a process of a run.
        KeyboardInterrupt: It was stopped by Ctrl-C; what had been completed is kept.
    """
    refuse_within_run()
    settings: Mapping[str, Any] = {} if env is None else env.settings

    def job_of(point: Point) -> Job:
        parts = {**settings, **point.values, "seed": point.seed}
        values = {key: value for key, value in parts.items() if value is not None}
        if not isinstance(job, FedJob):
            return load_job(job, (), values)
        root = Path("runs") if env is None else env.workspace_root
        return job.resolve(values, root / "models")[0]

    folder = None if run_dir is None else Path(run_dir)
    whole = Sweep(folder, job_of, vary or {}, seeds, variants=variants, prune=prune)
    console = make_console()
    console.quiet = env is not None and env.quiet

    def tell(progress: SweepProgress) -> None:
        if progress.ended is not None:
            console.out(point_line(whole.record, progress.ended))

    was_stopped = whole.run(parallel, tell)
    write_results(whole.folder, whole.record)
    if was_stopped:
        raise KeyboardInterrupt
    return SweepResult(whole.folder, whole.record)
