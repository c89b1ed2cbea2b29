"""All that a run directory tells of its run, whatever became of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from flstream.errors import SimulationError, UsageError
from flstream.job import JobError
from flstream.report.record.clock import Clock
from flstream.report.record.json_files import (
    Matrix,
    read_cross_site,
    read_split,
    read_versions,
)
from flstream.report.record.logged import LoggedRecord, LoggedValues
from flstream.report.record.memory import MemoryRecord, read_memory
from flstream.report.record.settings import Setting, read_settings
from flstream.report.text import counted
from flstream.runs.history import History
from flstream.runs.job_facts import JobFacts
from flstream.runs.journal import Journal
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_record import SiteRecord
from flstream.runs.summary import MemorySummary, Summary, summarize
from flstream.telemetry.events import SERVER, SiteLog
from flstream.telemetry.memory import ProcessMemory

HELPERS = ("launcher", "fork-server", "model-builder", "tracker")
"""Processes of a run that are neither its server nor do the work of sites."""


class RunRecord(NamedTuple):
    """A run.

    Attributes:
        path: its folder.
        status: finished, failed or stopped; unfinished where no end was written.
        summary: as it was written; or what the events tell, where none was.
        planned: rounds that it was to have; 0 if that is not known.
        history: What its events say.
        sites: Sites that were asked to do anything, by name.
        memory: Resident memory of its processes over time.
        logged: Values that its sites and its workflow logged.
        split: Number of each site's examples by label, as far as sites have recorded it.
        clock: seconds for which it was going on.
        settings: Keys of its job file.
        versions: of what it ran on, by name; none where they were not kept.
        notes: what is missing or damaged, a sentence each.
        cross_site: What each site has found of each model, where a workflow asked.
    """

    path: Path
    status: str
    summary: Summary
    planned: int
    history: History
    sites: Mapping[str, SiteRecord]
    memory: MemoryRecord
    logged: LoggedRecord
    split: Mapping[str, Mapping[str, int]]
    clock: Clock
    settings: Sequence[Setting]
    versions: Mapping[str, str]
    notes: Sequence[str]
    cross_site: Matrix = MappingProxyType({})

    @property
    def seconds(self) -> float:
        """For which it was going on."""
        return self.summary.wall_seconds or self.clock.seconds

    @property
    def shares_workers(self) -> bool:
        """Whether sites share processes: whether these have other names than the sites."""
        return any(name.startswith("worker-") for name in self.history.timeline.idle_rss)


def read_run(path: Path) -> RunRecord:
    """Read a run directory.

    Memory is bounded: samples are condensed as they are read, events are added up.

    Raises:
        UsageError: it is no run directory, or cannot be read.
    """
    run = RunDirectory(path.absolute())
    try:
        if not (run.events.is_file() or run.summary.is_file()):
            raise UsageError(
                f"{path} is not a run directory: it has neither events.jsonl nor summary.json; "
                "name the folder that flstream simulate made, such as runs/<job>-<time>"
            )
        return _read(run)
    except SimulationError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}; check its permissions"
        ) from error


def _read(run: RunDirectory) -> RunRecord:
    notes = []
    try:
        settings = read_settings(run)
    except JobError as error:
        settings = []
        notes.append(f"job.conf is damaged, so no settings are shown: {error.problems[0]}.")
    history, logs = History(_facts_of(settings)), LoggedValues()
    journal = Journal(run.events, tolerant=True)
    for event, counts, _ in journal:
        history.apply(event, counts=counts)
        if counts and isinstance(event, SiteLog):
            logs.add(event)
    clock = Clock(history.timeline.sittings)
    memory = read_memory(run.memory, clock)
    for name, damaged in (("events.jsonl", journal.damaged), ("memory.jsonl", memory.damaged)):
        if damaged:
            count = counted(damaged, "line")
            notes.append(f"{name} is damaged: {count} of it could not be used.")
    if journal.gaps:
        places = counted(journal.gaps, "place")
        notes.append(
            f"events.jsonl is damaged: in {places}, lines are missing, doubled or swapped."
        )
    summary = None
    try:
        summary = msgspec.json.decode(run.summary.read_bytes(), type=Summary)
    except FileNotFoundError:
        notes.append(
            "There is no summary.json: the run was cut off before it wrote one, or is still going "
            "on. What follows is what its events tell."
        )
    except (ValueError, RecursionError):
        notes.append("summary.json is damaged. What follows is what the events of the run tell.")
    if summary is None:
        summary = _from_events(history, memory, clock)
    status = "unfinished" if summary.status == "running" else summary.status
    return RunRecord(
        path=run.path,
        status=status,
        summary=summary,
        planned=history.planned_rounds or _planned(settings),
        history=history,
        sites=history.sites,
        memory=memory,
        logged=logs.record,
        split=read_split(run.sites),
        clock=clock,
        settings=settings,
        versions=read_versions(run.versions),
        notes=notes,
        cross_site=read_cross_site(run.cross_site_results),
    )


def _from_events(history: History, memory: MemoryRecord, clock: Clock) -> Summary:
    """The summary of a run that wrote none. The peaks are those that were seen."""
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


def _facts_of(settings: Sequence[Setting]) -> JobFacts:
    """What the job file tells of the job. Its code and data need not be there any more."""
    texts = {setting.key: setting.value.strip('"') for setting in settings}
    return JobFacts(
        name=texts.get("name", ""),
        seed=_whole(texts.get("seed")),
        clients=_whole(texts.get("clients.count")),
        key_metric=texts.get("workflow.args.key_metric", "accuracy"),
        key_metric_mode="min" if texts.get("workflow.args.key_metric_mode") == "min" else "max",
    )


def _planned(settings: Sequence[Setting]) -> int:
    return next((_whole(setting.value) for setting in settings if setting.key == "rounds"), 0)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
