"""The runs of a sweep: started in warm processes, some at a time, resumed, and pruned."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from flstream.engines.processes import OTHER_IMPORTS, PRELOAD, Process, ProcessHost, variables_of
from flstream.errors import StreamingError, UsageError
from flstream.job import Job, JobError
from flstream.job.keys import value_at, which_key
from flstream.report.text import counted
from flstream.runs.job_match import differences
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.dry_run import outline_programs
from flstream.simulation.interruption import handling
from flstream.sweep.grid import Axes, Point, Values, grid, keys_of
from flstream.sweep.record import PointRecord, SweepRecord, has_failed
from flstream.telemetry.locks import lock_file
from flstream.text import brief_names, how_ended
from flstream.transport.channel import Signal
from flstream.transport.messages import MessageChannel

_ARGS = "train.args"
_POINT = "flstream.sweep.point:run_point"
_POINT_MODULE = "flstream.sweep.point"
# Seconds that stopped runs may take to keep their last round, and a process to be gone.
_STOP_SECONDS, _END_SECONDS = 20.0, 5.0

JobOf = Callable[[Point], Job]
"""Function that returns the job of a point."""


class SweepProgress(NamedTuple):
    """Number of runs that are over, of a sweep or of a part of it after which runs are pruned.

    Attributes:
        ended: The run that has ended; None where one has begun.
        done: Number of runs that are over.
        total: Number of runs.
        running: Names of those that are going on.
    """

    ended: PointRecord | None
    done: int
    total: int
    running: Sequence[str]


OnProgress = Callable[[SweepProgress], None]
"""Function that is told how far a sweep is."""


class _Running(NamedTuple):
    """A run that is going on."""

    record: PointRecord
    process: Process
    channel: MessageChannel[PointRecord]


class Sweep:
    """A sweep in a folder.

    Args:
        folder: The folder: new, empty, or that of this sweep; None for ``runs/<job>-sweep``.
        job_of: Makes the job of each point.
        axes: Values of each key that is varied.
        seeds: Number of seeds, from the job's own on.
        variants: Settings to try, each with all values; none for the job as it is.
        prune: Whether to prune by successive halving: all settings run for a part of the rounds,
            and the better half of them for twice as many.
        command: The command line that runs it; empty for a sweep from Python.

    Attributes:
        folder: As an absolute path.
        record: What is known of the points.
        notes: Sentences on what is not as fast as it could be, and on runs from before.

    Raises:
        JobError: The job of a point has mistakes; the message names all of them.
        UsageError: The grid is too large, a key is given twice, or the folder has runs of another
            job or something else in it.
    """

    def __init__(
        self,
        folder: Path | None,
        job_of: JobOf,
        axes: Axes,
        seeds: int,
        *,
        variants: Sequence[Values] = (),
        prune: bool = False,
        command: str = "",
    ) -> None:
        self._job_of = job_of
        for key, values in axes.items():
            if isinstance(values, str) or not values:
                raise UsageError(f"vary: {key} has {values!r}; give it a list of values")
        # As they are once sweep.json was read again: lists for tuples.
        plain = {key: _plain(list(values)) for key, values in axes.items()}
        settings = [_plain(dict(variant)) for variant in variants]
        [point, *_] = grid(settings, {key: values[:1] for key, values in plain.items()}, 0, 1)
        first = job_of(point._replace(seed=None))
        self.folder = (folder or Path("runs") / f"{first.name}-sweep").absolute()
        points = grid(settings, plain, first.seed, seeds)
        # All mistakes come before anything begins.
        jobs = [first, *(job_of(point) for point in points[1:])]
        for point, job in zip(points, jobs, strict=True):
            if point.seed == first.seed:
                _check_programs(point, job)
        written = [job.written() for job in jobs]
        _check_apart(points, written)
        if prune and len({job.rounds for job in jobs}) > 1:
            raise UsageError("rounds: --prune compares settings after the same number of rounds")
        keys = keys_of(settings, plain)
        waiting = [
            PointRecord(point.name, _all_values(point, own, keys), point.seed)
            for point, own in zip(points, written, strict=True)
        ]
        metric = first.key_metric, first.key_metric_mode
        self.record = SweepRecord(
            first.name, *metric, settings, plain, seeds, prune, command, waiting
        )
        self.record.take_over(self._file)
        names = [record.name for record in self.record.points]
        self._jobs = dict(zip(names, jobs, strict=True))
        self.notes = [*self._notes_on_earlier(), *_notes(jobs), *self._notes_on_arguments()]

    @property
    def _file(self) -> Path:
        return self.folder / "sweep.json"

    def directory(self, record: PointRecord) -> RunDirectory:
        """Return the run directory of a point."""
        return RunDirectory(self.folder / record.name)

    def _notes_on_earlier(self) -> Iterator[str]:
        """Yield sentences on runs from before, and refuse those of another job."""
        done = [point for point in self.record.points if self._is_done(point, None)]
        if done:
            yield f"{len(done)} of the runs {'is' if len(done) == 1 else 'are'} over already"
        if others := len(self.record.others):
            yield f"of values that are not asked for, {counted(others, 'run')} in the folder"
        of_other_code: dict[str, list[str]] = {}
        for point in self.record.points:
            run = self.directory(point)
            if run.is_new:
                continue
            if lacking := run.lacking():
                raise UsageError(
                    f"{run.path} is not a run directory, since it lacks {lacking}; remove it, and "
                    "the run begins anew"
                )
            if not run.job_file.exists() or has_failed(point, run):
                continue
            keys, files = differences(self._jobs[point.name], run)
            if keys or (files and point not in done):
                raise UsageError(
                    f"the run in {run.path} was made by another job: {'; '.join([*keys, *files])}; "
                    "give the settings and files that it was begun with, or name a new folder with "
                    "--run-dir"
                )
            for change in files:
                of_other_code.setdefault(change, []).append(point.name)
        for change, names in of_other_code.items():
            yield f"{brief_names(names, 2)}: {change}; a new --run-dir runs all with the same files"

    def _notes_on_arguments(self) -> Iterator[str]:
        """Yield sentences on arguments of training code that the job itself does not give it."""
        try:
            job = self._job_of(Point("", {}, None))
        except JobError:  # it needs what the sweep sets
            return
        args = job.train.args
        own = [f"{_ARGS}.{name}" for name in args] if isinstance(args, Mapping) else []
        for key in self.record.keys:
            if own and key.startswith(f"{_ARGS}.") and key not in own:
                hint = which_key(key, own) or f"there are {', '.join(own)}"
                yield f"the job itself has no {key}; {hint}"

    def run(self, parallel: int = 1, on_progress: OnProgress = lambda progress: None) -> bool:
        """Run all points that are not finished; return whether Ctrl-C has stopped it.

        Args:
            parallel: Number of runs at a time.
            on_progress: Called when a run has begun, and when one has ended.

        Raises:
            UsageError: Another process runs this sweep.
            SimulationError: ``sweep.json`` cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be made: {error.strerror}") from error
        with ExitStack() as stack:
            try:
                own = lock_file(stack.enter_context((self.folder / ".lock").open("ab")).fileno())
            except OSError as error:
                raise UsageError(f"{self.folder} cannot be locked: {error.strerror}") from error
            if not own:
                raise UsageError(f"another process runs the sweep in {self.folder}; wait for it")
            self.record.write(self._file)
            stop = stack.enter_context(closing(Signal()))
            stack.enter_context(handling(lambda *_: stop.set()))
            host_of = partial(_host_of, stack, {})
            for rounds, records in self._rungs():
                self._run(records, rounds, parallel, host_of, stop, on_progress)
                if stop.is_set():
                    return True
        return False

    def _rungs(self) -> Iterator[tuple[int | None, list[PointRecord]]]:
        """Yield the points to run for so many rounds, and prune those that are behind after it."""
        record = self.record
        if not record.prune:
            yield None, record.points
            return
        settings = record.settings
        total = max(job.rounds for job in self._jobs.values())
        halvings = min((len(settings) - 1).bit_length(), total.bit_length() - 1)
        for rung in range(halvings, -1, -1):
            rounds = -(-total // (1 << rung))
            yield rounds if rung else None, [point for members in settings for point in members]
            if rung:
                settings = self._better_half(settings, rounds)

    def _better_half(
        self, settings: Sequence[list[PointRecord]], rounds: int
    ) -> list[list[PointRecord]]:
        """Return the better half of settings by the mean over seeds; the others are pruned."""
        if any(members[0].pruned_at == rounds for members in settings):  # in an earlier sitting
            return [members for members in settings if members[0].pruned_at != rounds]
        sign = -1 if self.record.mode == "max" else 1

        def place(members: Sequence[PointRecord]) -> float:
            scores = [point.score for point in members if point.score is not None]
            return sign * mean(scores) if scores else float("inf")

        ranked = sorted(settings, key=place)
        count = -(-len(ranked) // 2)
        for members in ranked[count:]:
            for point in members:
                point.status, point.pruned_at = "pruned", rounds
        self.record.write(self._file)
        return ranked[:count]

    def _run(
        self,
        records: Sequence[PointRecord],
        rounds: int | None,
        parallel: int,
        host_of: Callable[[Job], ProcessHost],
        stop: Signal,
        on_progress: OnProgress,
    ) -> None:
        """Run points, some at a time, until all have ended or the sweep is to stop."""
        waiting = [record for record in records if not self._is_done(record, rounds)][::-1]
        running: list[_Running] = []
        done, total = len(records) - len(waiting), len(records)
        deadline: float | None = None  # of a sweep that is to stop
        while waiting or running:
            while waiting and len(running) < parallel and not stop.is_set():
                record = waiting.pop()
                job = self._jobs[record.name]
                if rounds is not None:
                    job = job.model_copy(update={"rounds": rounds})
                running.append(self._start(record, job, host_of(job)))
                on_progress(SweepProgress(None, done, total, [run.record.name for run in running]))
            if stop.is_set() and deadline is None:
                deadline = time.monotonic() + _STOP_SECONDS
                waiting.clear()
                for run in running:
                    run.process.send(signal.SIGTERM)
            for run in _ended(running, stop, deadline):
                running.remove(run)
                self._take(run)
                done += run.record.status != "stopped"
                names = [other.record.name for other in running]
                on_progress(SweepProgress(run.record, done, total, names))

    def _is_done(self, record: PointRecord, rounds: int | None) -> bool:
        if record.status != "finished":
            return record.status == "pruned"
        wanted = self._jobs[record.name].rounds if rounds is None else rounds
        has_all = record.ended_early or record.rounds >= wanted
        return has_all and self.directory(record).summary.exists()

    def _start(self, record: PointRecord, job: Job, host: ProcessHost) -> _Running:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = job, self.directory(record).path, record, theirs
            process = host.start(f"sweep/{record.name}", _POINT, *arguments)
        channel: MessageChannel[PointRecord] = MessageChannel(ours, record.name, PointRecord)
        return _Running(record, process, channel)

    def _take(self, ended: _Running) -> None:
        """Record how a run has ended, and write that down."""
        record, process, channel = ended
        with closing(channel):
            try:
                end = channel.receive(0.0)
                for name in end.__struct_fields__:
                    setattr(record, name, getattr(end, name))
            except StreamingError:
                process.kill()
                code = process.exit_code(_END_SECONDS)
                how = "did not stop in time" if code is None else how_ended(code)
                record.fail(f"its process {how}", record.rounds)
        self.record.write(self._file)


def _host_of(
    stack: ExitStack, hosts: dict[tuple[tuple[str, str], ...], ProcessHost], job: Job
) -> ProcessHost:
    """Return the fork server with all imports made for a job's variables, begun if need be."""
    variables = variables_of(job)
    imports = [variables.get(PRELOAD), _POINT_MODULE, *OTHER_IMPORTS]
    variables[PRELOAD] = ",".join(filter(None, imports))
    key = tuple(sorted(variables.items()))
    if key not in hosts:
        hosts[key] = stack.enter_context(ProcessHost(variables))
    return hosts[key]


def _plain(value: Any) -> Any:
    """Return a value as ``sweep.json`` has it: lists for tuples, and texts as keys."""
    return msgspec.to_builtins(value, str_keys=True)


def _ended(running: Sequence[_Running], stop: Signal, deadline: float | None) -> list[_Running]:
    """Wait until a run has ended, or the sweep is to stop; return those that have.

    Of a sweep that is stopping, all count as ended from the deadline on.
    """
    poll, rest = select.poll(), None
    for run in running:
        poll.register(run.process.fileno(), select.POLLIN)
    if deadline is None:
        poll.register(stop.fileno(), select.POLLIN)
    else:
        rest = max(deadline - time.monotonic(), 0.0) * 1e3
    ready = {fd for fd, _ in poll.poll(rest)}
    is_late = deadline is not None and not ready
    return [run for run in running if is_late or run.process.fileno() in ready]


def _check_programs(point: Point, job: Job) -> None:
    """Refuse a setting whose workflow cannot do what the other keys ask for."""
    try:
        outline_programs(job)
    except JobError as error:
        raise JobError(f"the point {point.name}", error.problems) from None


def _check_apart(points: Sequence[Point], written: Sequence[Values]) -> None:
    """Refuse settings that come to the same job, by the values of their jobs."""
    known: dict[str, str] = {}
    for point, values in zip(points, written, strict=True):
        same = known.setdefault(repr(values), point.name)
        if same != point.name:
            raise UsageError(
                f"the points {same} and {point.name} are the same job; leave one of them out"
            )


def _all_values(point: Point, own: Values, keys: Sequence[str]) -> dict[str, Any]:
    """Return a point's value of each key, which is the job's own where its variant sets none."""
    values = {key: point.values.get(key, value_at(own, key)) for key in keys}
    return {key: value for key, value in values.items() if value is not None}


def _notes(jobs: Sequence[Job]) -> list[str]:
    """Return sentences on jobs whose processes are not forked with their imports made."""
    notes = []
    if any(job.train.command is not None for job in jobs):
        notes.append("train.command starts processes that import torch themselves, in each run")
    if any(job.clients.share_workers and job.train.learner is None for job in jobs):
        notes.append(
            "sites share processes, in which each task runs the script anew; "
            "clients.parallel = clients.count would not"
        )
    if any(not (job.engine.is_local or job.engine.is_inline) for job in jobs):
        notes.append("workers on a Ray cluster import torch themselves, in each run")
    return notes
