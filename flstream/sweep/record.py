"""``sweep.json``: what a sweep varies, and how far each of its runs is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from flstream.errors import SimulationError, UsageError
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import write_whole
from flstream.runs.summary import Summary
from flstream.sweep.grid import keys_of

PointStatus = Literal["waiting", "finished", "failed", "stopped", "pruned"]


class PointRecord(msgspec.Struct):
    """One run of a sweep.

    Attributes:
        name: Name of its folder.
        values: Value of each key that the sweep sets; the job's own where its variant sets none.
        seed: Its seed.
        status: ``waiting`` for one that was not run yet; ``pruned`` for one that was left behind.
        rounds: Rounds that it has completed.
        ended_early: Whether it has nothing left to do for all that it has fewer rounds.
        pruned_at: Rounds after which it was left behind; 0 where it was not.
        score: Its best key metric; None where nothing was scored.
        seconds: How long it took.
        simulated_seconds: How long it took by the virtual clock; None without one.
        error: Why it failed; empty where it has not.
        warnings: Sentences on what went wrong, though it could go on.
    """

    name: str
    values: dict[str, Any]
    seed: int | None
    status: PointStatus = "waiting"
    rounds: int = 0
    ended_early: bool = False
    pruned_at: int = 0
    score: float | None = None
    seconds: float = 0.0
    simulated_seconds: float | None = None
    error: str = ""
    warnings: list[str] = []

    def end(self, summary: Summary) -> None:
        """Take how the run has ended from its summary."""
        self.status = "failed" if summary.status == "running" else summary.status
        self.rounds, self.ended_early = summary.rounds_completed, summary.ended_early is not None
        self.score = None if summary.best is None else summary.best.value
        self.seconds, simulated = summary.wall_seconds, summary.simulated_seconds
        self.simulated_seconds = None if simulated is UNSET else simulated
        self.error, self.warnings = summary.error or "", summary.warnings

    def fail(self, error: str, rounds: int = 0) -> None:
        """Note that the run could not begin, or that its process was lost."""
        self.status, self.error, self.rounds, self.score = "failed", error, rounds, None
        self.ended_early, self.seconds, self.simulated_seconds = False, 0.0, None
        self.warnings = []


class SweepRecord(msgspec.Struct):
    """A sweep.

    Attributes:
        job: Name of the job.
        metric: Its key metric.
        mode: Whether a larger value is the better one.
        variants: Settings that are tried, each with all values; none for the job as it is.
        vary: Values of each key that is varied.
        seeds: Number of seeds.
        prune: Whether points are pruned by successive halving.
        command: The command that runs it, and resumes it; empty for one from Python.
        points: The runs.
        others: Runs in its folder of values that it no longer has.
    """

    job: str
    metric: str
    mode: Literal["max", "min"]
    variants: list[dict[str, Any]]
    vary: dict[str, list[Any]]
    seeds: int
    prune: bool
    command: str
    points: list[PointRecord]
    others: list[PointRecord] = []

    @property
    def keys(self) -> list[str]:
        """The keys that any point sets, those of the variants first."""
        return keys_of(self.variants, self.vary)

    @property
    def settings(self) -> list[list[PointRecord]]:
        """Points of each setting, which differ in their seed alone."""
        settings: dict[str, list[PointRecord]] = {}
        for point in self.points:
            settings.setdefault(repr(point.values), []).append(point)
        return list(settings.values())

    def write(self, path: Path) -> None:
        """Write ``sweep.json``, whole or not at all.

        Raises:
            SimulationError: The disk does not take it.
        """
        text = msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"
        try:
            write_whole(path, text)
        except OSError as error:
            raise SimulationError(
                f"{path} cannot be written: {error.strerror}; put that right, and give the same "
                "command again"
            ) from error

    def take_over(self, path: Path) -> None:
        """Take what is known of this sweep's points from its ``sweep.json``, if there is one.

        Raises:
            UsageError: The file is damaged, or of another sweep.
        """
        try:
            before = msgspec.json.decode(path.read_bytes(), type=SweepRecord)
        except FileNotFoundError:
            if path.parent.exists() and any(path.parent.iterdir()):
                raise UsageError(
                    f"{path.parent} is not empty, and has no sweep.json; name a new folder with "
                    "--run-dir"
                ) from None
            return
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{path} cannot be read: {error}; name another folder with --run-dir"
            ) from error
        # By its values: a name lacks what folders cannot have, and the start of long values.
        known = {_identity(point): point for point in [*before.points, *before.others]}
        own = {_identity(point) for point in self.points}
        for is_other, what in (
            (before.job != self.job, f"of the job {before.job}"),
            (before.prune != self.prune, f"with{'' if before.prune else 'out'} --prune"),
            (self.prune and own != known.keys(), "of other points, which --prune compares"),
        ):
            if is_other:
                raise UsageError(
                    f"{path.parent} has a sweep {what}; give the command that it was begun with, "
                    "or name a new folder with --run-dir"
                )
        others = [point for identity, point in known.items() if identity not in own]
        self.others = [point for point in others if point.status != "waiting"]
        taken = {point.name for point in known.values()}
        for place, point in enumerate(self.points):
            if (same := known.get(_identity(point))) is not None:
                self.points[place] = msgspec.structs.replace(same, values=point.values)
                continue
            name, number = point.name, 1
            while point.name in taken:
                number += 1
                point.name = f"{name},{number}"
            taken.add(point.name)


def sweep_command(run: Path) -> str:
    """Return the command that resumes the sweep of a run; empty where none has it."""
    try:
        content = run.with_name("sweep.json").read_bytes()
        record = msgspec.json.decode(content, type=SweepRecord)
    except (OSError, msgspec.DecodeError):
        return ""
    return record.command if any(point.name == run.name for point in record.points) else ""


def has_failed(point: PointRecord, run: RunDirectory) -> bool:
    """Return whether a run has failed, so that it may begin anew with another job or other code.

    A run that was cut off has no summary yet, or that of its last sitting.
    """
    try:
        return msgspec.json.decode(run.summary.read_bytes(), type=Summary).status == "failed"
    except (OSError, msgspec.DecodeError):
        return point.status == "failed"


def _identity(point: PointRecord) -> bytes:
    return msgspec.json.encode((point.values, point.seed))
