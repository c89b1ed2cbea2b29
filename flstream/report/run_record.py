"""A run directory read once, whatever became of its run."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from flstream.errors import SimulationError, UsageError
from flstream.job import JobError
from flstream.job.hocon import read_hocon
from flstream.job.keys import flat, keys_in
from flstream.job.values import render_value
from flstream.report.text import counted
from flstream.runs.history import History
from flstream.runs.job_facts import JobFacts
from flstream.runs.journal import Journal
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_record import SiteRecord
from flstream.runs.summary import MemorySummary, Summary, summarize
from flstream.telemetry.events import SERVER, SiteLog
from flstream.telemetry.locks import lock_file
from flstream.telemetry.memory import ProcessMemory
from flstream.text import natural_key

HELPERS = ("launcher", "fork-server", "model-builder", "tracker")
"""Processes of a run that are neither its server nor do the work of sites."""

# More values than a chart has columns for. Of more samples the bins get longer.
_MOST_BINS, _FIRST_STEP = 768, 0.05
_MOST_VALUES, _MOST_KEYS, _MOST_TEXTS = 4096, 64, 20
_MOST_JSON_BYTES = 64 << 20
_UNREADABLE = (ValueError, RecursionError)  # the decoder's errors are ValueErrors


class Setting(NamedTuple):
    """A key of the job file with its value as text, and whether that is the default."""

    value: str
    meaning: str
    is_default: bool


class LoggedCurve:
    """Numbers that a site logged under a key, in the memory of a few thousand.

    Attributes:
        places: step of each, or its round; with more than 4,096 values every other one is dropped.
        values: the numbers; NaN for those that are not finite.
    """

    def __init__(self) -> None:
        self.places, self.values = array("d"), array("d")
        self._stride, self._count = 1, 0

    def add(self, place: float, value: float) -> None:
        """Add a value."""
        if self._count % self._stride == 0:
            self.places.append(place)
            self.values.append(value)
        self._count += 1
        if len(self.places) > _MOST_VALUES:
            self.places, self.values = self.places[::2], self.values[::2]
            self._stride *= 2


@dataclass
class LoggedValues:
    """All that a run logged.

    Attributes:
        curves: numbers by key and site, in the order in which the keys first came.
        with_steps: keys of numbers that have steps of the sites' own.
        texts: the last texts, the newest first.
        text_count: number of all texts.
        more_keys: hashes of keys left out.
    """

    curves: dict[str, dict[str, LoggedCurve]] = field(default_factory=dict)
    with_steps: set[str] = field(default_factory=set)
    texts: deque[SiteLog] = field(default_factory=lambda: deque(maxlen=_MOST_TEXTS))
    text_count: int = 0
    more_keys: set[int] = field(default_factory=set)

    def add(self, event: SiteLog) -> None:
        """Add a value that counts, in the order of the journal."""
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
class MemoryCurves:
    """RSS of processes over the time for which a run was going on.

    Attributes:
        step: seconds that a value stands for.
        rss: highest RSS in bytes of each step by process; 0 where there was no sample.
        nodes: nodes of the processes that were not on the launcher's machine.
        damaged: number of lines that could not be read.
    """

    step: float
    rss: Mapping[str, Sequence[int]]
    nodes: Mapping[str, str] = field(default_factory=dict)
    damaged: int = 0

    def peak(self, process: str) -> int:
        """Return the highest sample of a process in bytes; 0 without one."""
        return max(self.rss.get(process, ()), default=0)


@dataclass(frozen=True)
class RunRecord:
    """A run.

    Attributes:
        path: run directory.
        status: finished, failed, stopped, running, or unfinished where it was cut off.
        summary: ``summary.json``, or without that what the events say.
        planned: rounds that the run was to have; 0 if that is not known.
        history: history of the run's events.
        sites: sites that were asked to do anything, by name.
        memory: memory of the run's processes.
        logged: values that sites and the workflow logged.
        split: number of each site's examples by label, where sites recorded it.
        resumed_at: seconds of running time at which the run was resumed.
        seconds: seconds for which the run was going on.
        settings: keys of the job file.
        versions: versions that the run had, by name.
        notes: sentences about what is missing or damaged.
        cross_site: metrics by the site that scored and the model's owner.
    """

    path: Path
    status: str
    summary: Summary
    planned: int
    history: History
    sites: Mapping[str, SiteRecord]
    memory: MemoryCurves
    logged: LoggedValues
    split: Mapping[str, Mapping[str, int]]
    resumed_at: Sequence[float]
    seconds: float
    settings: Mapping[str, Setting]
    versions: Mapping[str, str]
    notes: Sequence[str]
    cross_site: Mapping[str, Mapping[str, Mapping[str, float | None]]]

    @property
    def name(self) -> str:
        """Name of the job, or without one of the folder."""
        return self.summary.job or self.path.name


def is_going_on(run: RunDirectory) -> bool:
    """Return whether a process holds the lock of a run directory."""
    with suppress(OSError), run.memory.open("r+b") as file:
        return not lock_file(file.fileno())
    return False


def read_run(path: Path, *, is_running: bool | None = None) -> RunRecord:
    """Read a run directory.

    Args:
        path: path of the run directory.
        is_running: whether the run is going on; None to find out by its lock.

    Raises:
        UsageError: the folder is not a run directory, or cannot be read.
    """
    run = RunDirectory(path.absolute())
    try:
        if not (run.events.is_file() or run.summary.is_file()):
            raise UsageError(
                f"{path} is not a run directory: it has neither events.jsonl nor summary.json; "
                "name the folder that flstream simulate made, such as runs/<job>-<time>"
            )
        running = is_going_on(run) if is_running is None else is_running
        return _read(run, is_running=running)
    except SimulationError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}; check its permissions"
        ) from error


def _read(run: RunDirectory, *, is_running: bool) -> RunRecord:
    notes: list[str] = []
    settings = _read_settings(run, notes)
    history, logged = _read_journal(run, settings, notes)
    clock = _Clock(history.timeline.sittings)
    memory = _read_memory(run.memory, clock)
    if memory.damaged:
        lines = counted(memory.damaged, "line")
        notes.append(f"memory.jsonl is damaged: {lines} of it could not be used.")
    summary = None if is_running else _read_summary(run, notes)
    if summary is None:
        summary = _summary_of_events(history, memory, clock)
    status = "unfinished" if summary.status == "running" else summary.status
    rounds = settings.get("rounds")
    return RunRecord(
        path=run.path,
        status="running" if is_running else status,
        summary=summary,
        planned=history.planned_rounds or _whole(rounds and rounds.value),
        history=history,
        sites=history.sites,
        memory=memory,
        logged=logged,
        split=_read_split(run.sites),
        resumed_at=clock.starts[1:],
        seconds=summary.wall_seconds or clock.seconds,
        settings=settings,
        versions=_read_json(run.versions, dict[str, str]),
        notes=notes,
        cross_site=_read_json(
            run.cross_site_results, dict[str, dict[str, dict[str, float | None]]]
        ),
    )


def _read_settings(run: RunDirectory, notes: list[str]) -> dict[str, Setting]:
    """Read the job file alone: what it names may be gone by now."""
    if not run.job_file.exists():
        return {}
    try:
        hocon = read_hocon(run.job_file)
        if hocon.problems:
            raise JobError(run.job_file, hocon.problems)
        settings, keys = {}, keys_in(hocon.values)
        for name, value in flat(hocon.values):
            key = keys.get(name)
            is_default = key is not None and not key.required and value == key.default
            meaning = "An argument of the workflow, as written." if key is None else key.meaning
            settings[name] = Setting(render_value(value), meaning.partition("\n")[0], is_default)
        return settings
    except JobError as error:
        notes.append(f"job.conf is damaged, so no settings are shown: {error.problems[0]}.")
        return {}


def _read_journal(
    run: RunDirectory, settings: Mapping[str, Setting], notes: list[str]
) -> tuple[History, LoggedValues]:
    texts = {key: setting.value.strip('"') for key, setting in settings.items()}
    facts = JobFacts(
        name=texts.get("name", ""),
        seed=_whole(texts.get("seed")),
        clients=_whole(texts.get("clients.count")),
        key_metric=texts.get("workflow.args.key_metric", "accuracy"),
        key_metric_mode="min" if texts.get("workflow.args.key_metric_mode") == "min" else "max",
    )
    history = History(facts)
    journal = Journal(run.events, tolerant=True)
    logged = LoggedValues()
    for event, counts, _ in journal:
        history.apply(event, counts=counts)
        if counts and isinstance(event, SiteLog):
            logged.add(event)
    if journal.damaged:
        lines = counted(journal.damaged, "line")
        notes.append(f"events.jsonl is damaged: {lines} of it could not be used.")
    if journal.gaps:
        places = counted(journal.gaps, "place")
        notes.append(
            f"events.jsonl is damaged: in {places}, lines are missing, doubled or swapped."
        )
    return history, logged


def _read_summary(run: RunDirectory, notes: list[str]) -> Summary | None:
    try:
        return msgspec.json.decode(run.summary.read_bytes(), type=Summary)
    except FileNotFoundError:
        notes.append("There is no summary.json: the run was cut off before it wrote one.")
    except _UNREADABLE:
        notes.append("summary.json is damaged. What follows is what the events of the run say.")
    return None


def _summary_of_events(history: History, memory: MemoryCurves, clock: _Clock) -> Summary:
    """Return the summary of a run that wrote none, with the peaks that were sampled."""
    timeline, summary = history.timeline, summarize(history)
    peaks = {
        name: ProcessMemory(
            idle_rss=timeline.idle_rss.get(name, 0),
            peak_rss=max(memory.peak(name), timeline.peak_rss.get(name, 0)),
            node=memory.nodes.get(name, UNSET),
        )
        for name in {**memory.rss, **timeline.idle_rss}
        if name not in HELPERS
    }
    server = peaks.pop(SERVER, ProcessMemory())
    summary.memory = MemorySummary(server, peaks)
    summary.wall_seconds = clock.seconds
    return summary


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _read_json(path: Path, kind: Any) -> Any:
    """Read a file of JSON; empty if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_JSON_BYTES), type=kind)
    except (FileNotFoundError, *_UNREADABLE):
        return {}


def _read_split(sites: Path) -> Mapping[str, Mapping[str, int]]:
    from flstream.client.site_folder import SPLIT  # at the end of a run: it loads the whole client

    counts = {
        path.parent.name: _read_json(path, dict[str, int]) for path in sites.glob(f"*/{SPLIT}")
    }
    names = sorted(counts, key=natural_key)
    return {
        name: counts[name] for name in names if counts[name] and min(counts[name].values()) >= 0
    }


class _Clock:
    """Running time of a run: the hours between its sittings do not count.

    Args:
        sittings: begin and end of each, in seconds since the epoch.

    Attributes:
        starts: running seconds at which each sitting begins.
        seconds: running time in all.
    """

    def __init__(self, sittings: Sequence[tuple[float, float]]) -> None:
        self._begins = [begin for begin, _ in sittings]
        self.starts = [0.0, *accumulate(end - begin for begin, end in sittings)]
        self.seconds = self.starts.pop() if sittings else 0.0

    def see(self, time: float) -> float:
        """Return the running seconds at a sample's time; the last one may extend the run."""
        if not self._begins:
            self._begins.append(time)
        sitting = max(bisect_right(self._begins, time) - 1, 0)
        seconds = self.starts[sitting] + max(time - self._begins[sitting], 0.0)
        if sitting + 1 < len(self.starts):
            return min(seconds, self.starts[sitting + 1])
        self.seconds = max(self.seconds, seconds)
        return seconds


class _Sample(msgspec.Struct):
    """Part of a line of ``memory.jsonl`` that charts need."""

    time: float
    process: str
    rss: int
    node: str | UnsetType = UNSET


_decoder = msgspec.json.Decoder(_Sample)


def _read_memory(path: Path, clock: _Clock) -> MemoryCurves:
    """Read samples in one pass; the highest of each step stays, so no peak is lost."""
    step, damaged = _FIRST_STEP, 0
    highest: dict[str, array[int]] = {}
    nodes: dict[str, str] = {}
    for line in _whole_lines(path):
        try:
            sample = _decoder.decode(line)
        except _UNREADABLE:
            damaged += 1
            continue
        if not math.isfinite(sample.time):
            continue
        seconds = clock.see(sample.time)
        while (index := int(seconds / step)) >= _MOST_BINS:
            step *= 2
            for name, values in highest.items():
                pairs = range(0, len(values), 2)
                highest[name] = array("q", (max(values[at : at + 2]) for at in pairs))
        values = highest.setdefault(sample.process, array("q"))
        values.extend([0] * (index + 1 - len(values)))
        values[index] = max(values[index], min(sample.rss, (1 << 63) - 1))
        if isinstance(sample.node, str):
            nodes[sample.process] = sample.node
    return MemoryCurves(step, highest, nodes, damaged)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield lines that have an end: what follows was being written when the run was cut off."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))
