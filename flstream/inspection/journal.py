"""What a run directory says of its checkpoints: its journal, ``events.jsonl``, and its summary."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.errors import CheckpointError
from flstream.simulator.files.run_directory import RunDirectory
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import most_line_bytes

_MOST_SUMMARY_BYTES = 64 << 20
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
_CHECKPOINT = re.compile(r"round-(\d{4,9})\.safetensors")


class _Event(msgspec.Struct):
    """What matters here of an event of any kind, also of one that this version does not know.

    The simulator's own reader refuses those, as it must; and it brings the whole of the job file's
    machinery with it, which is more than most checkpoints take to inspect.
    """

    kind: str = ""
    job: str = ""
    rounds: int = 0
    clients: int = 0
    round: int | None = 0
    evaluated: bool = True
    digest: str = ""
    optimizer_state: str = ""
    status: str = ""
    metrics: dict[str, float | None] = {}


class _Model(msgspec.Struct):
    digest: str = ""


class _Summary(msgspec.Struct):
    job: str = ""
    status: str = ""
    rounds_completed: int = 0
    model: _Model = msgspec.field(default_factory=_Model)


class Round(NamedTuple):
    """What is known of the model that a round ended with; round 0 is the initial model.

    Attributes:
        digest: of the model, or empty where only later rounds have one.
        metrics: that sites scored it with, or trained with where none was asked for.
        optimizer_state: digest of what the server's optimizer remembered after it; empty without
            one.
    """

    digest: str
    metrics: Mapping[str, float | None]
    optimizer_state: str = ""


class Journal(NamedTuple):
    """What a run says of itself.

    Attributes:
        path: of the file that says so.
        job: its name.
        status: finished, failed or stopped; ``unfinished`` where no end was written.
        planned: rounds that were to be run; 0 if that is not known.
        rounds: those that were completed, by number.
    """

    path: Path
    job: str
    status: str
    planned: int
    rounds: Mapping[int, Round]


def read_journal(run: RunDirectory) -> Journal | None:
    """What a run directory's journal says, or its summary where there is none; None without both.

    A line that was being written when the run was cut off is passed over.

    Raises:
        CheckpointError: the file cannot be read or is damaged.
    """
    if os.path.isfile(run.events):
        return _from_events(run.events)
    if os.path.isfile(run.summary):
        return _from_summary(run.summary)
    return None


def run_of(path: Path) -> tuple[RunDirectory, int | None] | None:
    """The run directory that a file lies in as a model, and its round; None if it does in none.

    The final model's round is None: it is that of the last round.
    """
    folder = path.parent
    if folder.name in ("", ".."):
        folder = path.absolute().parent
    found = _CHECKPOINT.fullmatch(path.name)
    if found is not None and folder.name == "checkpoints":
        run, number = RunDirectory(folder.parent), int(found[1])
    elif path.name == RunDirectory(folder).final_model.name:
        run, number = RunDirectory(folder), None
    else:
        return None
    return (run, number) if os.path.isfile(run.events) or os.path.isfile(run.summary) else None


def checkpoints_of(run: RunDirectory) -> dict[int, Path]:
    """The checkpoints that a run directory has, by round.

    Raises:
        CheckpointError: its folder of them cannot be listed.
    """
    found = {}
    try:
        for path in run.checkpoints.iterdir():
            match = _CHECKPOINT.fullmatch(path.name)
            if match is not None:
                found[int(match[1])] = path
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(
            f"{run.checkpoints} cannot be listed: {error.strerror}; check its permissions"
        ) from error
    return dict(sorted(found.items()))


def _from_events(path: Path) -> Journal:
    job, status, planned = "", "unfinished", 0
    rounds: dict[int, Round] = {}
    trained: dict[int, Round] = {}  # as they were before they were evaluated
    lines = WholeLines(path, most_line_bytes(0))
    decoder = msgspec.json.Decoder(_Event)
    try:
        for line in lines:
            try:
                event = decoder.decode(line)
            except _UNREADABLE as error:
                raise CheckpointError(
                    f"{path}, line {lines.number}, is no event of a run: {error}; "
                    "inspect the checkpoint from a copy outside of the run directory"
                ) from error
            if event.kind == "run_started":
                job, planned, status = event.job, event.rounds, "unfinished"
                lines.most = most_line_bytes(event.clients)
            elif event.kind == "run_resumed":
                # What came after the round that it goes on from is void.
                last, status = -1 if event.round is None else event.round, "unfinished"
                rounds = {n: known for n, known in rounds.items() if n <= last}
                if not event.evaluated and last in trained:
                    rounds[last] = trained[last]
            elif event.kind == "model_ready":
                rounds[0] = Round(event.digest, {})
            elif event.kind == "round_finished" and event.round is not None:
                known = Round(event.digest, event.metrics, event.optimizer_state)
                rounds[event.round] = trained[event.round] = known
            elif event.kind == "evaluated" and event.round in rounds:
                rounds[event.round] = rounds[event.round]._replace(metrics=event.metrics)
            elif event.kind == "run_finished":
                status = event.status
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return Journal(path, job, status, planned, rounds)


def _from_summary(path: Path) -> Journal:
    try:
        with path.open("rb") as file:
            summary = msgspec.json.decode(file.read(_MOST_SUMMARY_BYTES), type=_Summary)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{path} is no summary of a run: {error}; "
            "inspect the checkpoint from a copy outside of the run directory"
        ) from error
    rounds = {summary.rounds_completed: Round(summary.model.digest, {})}
    return Journal(path, summary.job, summary.status, 0, rounds)
