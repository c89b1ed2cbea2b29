"""A run directory, read once."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from flstream.errors import SimulationError, UsageError
from flstream.job import JobError
from flstream.job.hocon import read_hocon
from flstream.job.keys import keys_in, leaves
from flstream.job.values import render_value
from flstream.report.memory_curves import HELPERS, MemoryCurves, RunningClock, read_memory
from flstream.report.metrics import Metric, values_by_round
from flstream.report.site_errors import SiteError, site_errors
from flstream.report.text import counted
from flstream.runs.history import History
from flstream.runs.journal import Journal
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import MemorySummary, Summary, summarize
from flstream.telemetry.events import SERVER, SiteLog
from flstream.telemetry.locks import lock_file
from flstream.telemetry.memory import ProcessMemory
from flstream.text import natural_key

_MOST_VALUES, _MOST_KEYS, _MOST_TEXTS = 4096, 64, 20
_MOST_JSON_BYTES = 64 << 20


class Setting(NamedTuple):
    """Value of a job file's key as HOCON, and whether that is the default."""

    value: str
    meaning: str = ""  # empty where runs are compared
    is_default: bool = False


class LoggedCurve:
    """Numbers that a site logged under a key: of more than 4,096, evenly spaced ones."""

    def __init__(self) -> None:
        self.places = array("d")  # step of each number, or its round
        self.values = array("d")  # NaN for those that are not finite
        self._stride, self._count = 1, 0

    def add(self, place: float, value: float) -> None:
        """Add a number."""
        if self._count % self._stride == 0:
            self.places.append(place)
            self.values.append(value)
        self._count += 1
        if len(self.places) > _MOST_VALUES:
            self.places, self.values = self.places[::2], self.values[::2]
            self._stride *= 2


class LoggedValues:
    """All values that a run logged."""

    def __init__(self) -> None:
        self.curves: dict[str, dict[str, LoggedCurve]] = {}  # by key and site
        self.with_steps: set[str] = set()  # keys of numbers that have steps of the sites' own
        self.texts: deque[SiteLog] = deque(maxlen=_MOST_TEXTS)  # the last, the newest first
        self.text_count = 0  # of all texts
        self.more_keys: set[int] = set()  # keys left out, as hashes

    def add(self, event: SiteLog) -> None:
        """Add a value, in the order of the journal."""
        key = event.key
        if event.text is not None:
            self.text_count += 1
            self.texts.appendleft(event)
        elif key in self.curves or len(self.curves) < _MOST_KEYS:
            if event.step is not None:
                self.with_steps.add(key)
            place = event.round if event.step is None else event.step
            curve = self.curves.setdefault(key, {}).setdefault(event.site, LoggedCurve())
            curve.add(place, math.nan if event.value is None else event.value)
        else:
            self.more_keys.add(hash(key))


@dataclass(frozen=True)
class RunRecord:
    """A run."""

    path: Path
    status: str  # finished, failed, stopped, running, or unfinished where it was cut off
    summary: Summary  # summary.json, or without that what the events say
    history: History
    memory: MemoryCurves
    logged: LoggedValues
    split: Mapping[str, Mapping[str, int]]  # examples by label at each site that recorded them
    resumed_at: Sequence[float]  # seconds of running time
    seconds: float  # for which the run was going on
    settings: Mapping[str, Setting]  # by dotted key
    versions: Mapping[str, str]  # that the run had, by name
    notes: Sequence[str]  # sentences about what is missing or damaged
    cross_site: Mapping[str, Mapping[str, Mapping[str, float | None]]]  # by scoring site and owner
    errors: Sequence[SiteError]  # of sites; tracebacks of one run alone

    @property
    def name(self) -> str:
        """Name of the job, or without one of the folder."""
        return self.summary.job or self.path.name

    @property
    def begun(self) -> float:
        """When the run began, in seconds since the epoch; 0 where no event says so."""
        return self.history.sittings[0][0] if self.history.sittings else 0.0

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Values of the settings, as HOCON."""
        return {key: setting.value for key, setting in self.settings.items()}

    @cached_property
    def metrics(self) -> Mapping[int, Mapping[Metric, float]]:
        """Finite metrics of each round by its number."""
        return values_by_round(self.summary)

    @property
    def simulated_seconds(self) -> float | None:
        """How long the run took by the virtual clock; None without one."""
        seconds = self.summary.simulated_seconds
        return seconds if isinstance(seconds, float) else None

    @property
    def round_ends(self) -> Mapping[int, float]:
        """Simulated seconds at the end of each round, by number; of the initial model, 0."""
        ends = {row.round: row.simulated_seconds for row in self.summary.rounds}
        return {0: 0.0} | {number: end for number, end in ends.items() if isinstance(end, float)}

    @property
    def seconds_to_best(self) -> float | None:
        """Simulated seconds until the best model; None without a score or a virtual clock."""
        best = self.summary.best
        is_timed = best is not None and self.simulated_seconds is not None
        return self.round_ends.get(best.round) if best is not None and is_timed else None

    @property
    def over_idle(self) -> Mapping[str, np.ndarray]:
        """Memory over idle of server and workers at each step, in bytes; NaN without."""
        idle_rss = self.history.idle_rss
        return {
            name: np.maximum(self.memory.resident(name) - rss, 0)
            for name, rss in idle_rss.items()
            if rss and name in self.memory.rss and name not in HELPERS
        }


def read_run(
    path: Path, *, is_running: bool | None = None, is_one_of_many: bool = False
) -> RunRecord:
    """Read a run directory; by default, its lock shows whether the run goes on.

    Of one of many runs, tracebacks are left out, and settings are those of the summary, if it has
    them.
    """
    run = RunDirectory(path.absolute())
    try:
        if not run.is_run:
            raise UsageError(
                f"{path} is not a run directory: it has neither events.jsonl nor summary.json; "
                "name the folder that flstream simulate made, such as runs/<job>-<time>"
            )
        is_locked = _is_locked(run) if is_running is None else is_running
        return _read(run, is_running=is_locked, is_one_of_many=is_one_of_many)
    except SimulationError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}; check its permissions"
        ) from error


def _is_locked(run: RunDirectory) -> bool:
    with suppress(OSError), run.memory.open("r+b") as file:
        return not lock_file(file.fileno())
    return False


def _read(run: RunDirectory, *, is_running: bool, is_one_of_many: bool) -> RunRecord:
    notes: list[str] = []
    history, logged = _read_journal(run, notes)
    clock = RunningClock(history.sittings)
    memory = read_memory(run.memory, clock)
    if memory.damaged:
        lines = counted(memory.damaged, "line")
        notes.append(f"memory.jsonl is damaged: {lines} of it could not be used.")
    summary = None
    if not is_running:
        summary = _read_json(run.summary, Summary, notes)
        if summary is not None and summary.status == "running":  # as of no run that has ended
            notes.append("summary.json is damaged, so what it says is not shown.")
            summary = None
        if summary is not None and summary.rounds_completed > len(history.rounds):
            known = f"{len(history.rounds)} of {counted(summary.rounds_completed, 'round')}"
            notes.append(f"events.jsonl is cut off: it has {known}.")
        if summary is None and not run.summary.exists():
            notes.append("There is no summary.json: the run was cut off before it wrote one.")
    if summary is None:
        summary = _summary_of_events(history, memory, clock)
    # To read the job file takes a sixth of a second.
    written: Mapping[str, str] = summary.settings if is_one_of_many else {}
    settings = {key: Setting(value) for key, value in written.items()} or _settings(run, notes)
    status = "unfinished" if summary.status == "running" else summary.status
    scores = dict[str, dict[str, dict[str, float | None]]]
    return RunRecord(
        path=run.path,
        status="running" if is_running else status,
        summary=summary,
        history=history,
        memory=memory,
        logged=logged,
        split=_read_split(run.sites, notes),
        resumed_at=clock.starts[1:],
        seconds=summary.wall_seconds or clock.seconds,
        settings=settings,
        versions=_read_json(run.versions, dict[str, str], notes) or {},
        notes=notes,
        cross_site=_read_json(run.cross_site_results, scores, notes) or {},
        errors=site_errors(summary.failures, None if is_one_of_many else run),
    )


def _settings(run: RunDirectory, notes: list[str]) -> dict[str, Setting]:
    """Read the job file alone, since files that it names may be gone."""
    settings: dict[str, Setting] = {}
    if not run.job_file.exists():
        return settings
    try:
        hocon = read_hocon(run.job_file)
        if hocon.problems:
            raise JobError(run.job_file, hocon.problems)
        keys = keys_in(hocon.values)
        for name, value in leaves(hocon.values):
            key = next((keys[part] for part in _with_sections(name) if part in keys), None)
            is_default = key is not None and not key.required and value == key.default
            is_default = is_default or value == {}  # arguments that nobody gives
            meaning = "An argument of the workflow, as written." if key is None else key.meaning
            settings[name] = Setting(render_value(value), meaning.partition("\n")[0], is_default)
    except JobError as error:
        notes.append(f"job.conf is damaged, so no settings are shown: {error.problems[0]}.")
    return settings


def _with_sections(key: str) -> Iterator[str]:
    """Yield a dotted key, and the sections that it is in, from the inside out."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _read_journal(run: RunDirectory, notes: list[str]) -> tuple[History, LoggedValues]:
    history, logged = History(keeps_times=True), LoggedValues()
    journal = Journal(run.events, tolerant=True)
    for event in journal:
        history.apply(event)
        if isinstance(event, SiteLog):
            logged.add(event)
    if not run.events.exists():
        notes.append("There is no events.jsonl, so nothing is shown of rounds and sites.")
    if journal.damaged:
        lines = counted(journal.damaged, "line")
        notes.append(f"events.jsonl is damaged: {lines} of it could not be used.")
    if journal.gaps:
        places = counted(journal.gaps, "place")
        notes.append(
            f"events.jsonl is damaged: in {places}, lines are missing, doubled or swapped."
        )
    return history, logged


def _summary_of_events(history: History, memory: MemoryCurves, clock: RunningClock) -> Summary:
    """Return the summary of a run that wrote none, with the sampled peaks."""
    summary = summarize(history)
    peaks = {
        name: ProcessMemory(
            idle_rss=history.idle_rss.get(name, 0),
            peak_rss=max(memory.peak(name), history.peak_rss.get(name, 0)),
            node=memory.nodes.get(name, UNSET),
        )
        for name in {**memory.rss, **history.idle_rss}
        if name not in HELPERS
    }
    server = peaks.pop(SERVER, ProcessMemory())
    summary.memory = MemorySummary(server, peaks)
    summary.wall_seconds = clock.seconds
    return summary


def _read_json(path: Path, kind: Any, notes: list[str]) -> Any:
    """Read a file of JSON; return None, and add a note, if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_JSON_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):  # the decoder's errors are ValueErrors
        notes.append(f"{path.name} is damaged, so what it says is not shown.")
        return None


def _read_split(sites: Path, notes: list[str]) -> Mapping[str, Mapping[str, int]]:
    from flstream.client.partition import SPLIT  # at the end of a run: it loads the whole client

    paths = {path.parent.name: path for path in sites.glob(f"*/{SPLIT}")}
    names = sorted(paths, key=natural_key)
    counts = {name: _read_json(paths[name], dict[str, int], notes) or {} for name in names}
    return {name: count for name, count in counts.items() if min(count.values(), default=-1) >= 0}
