"""Where a run that was interrupted goes on: at the last completed round whose model is sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.errors import CheckpointError, SimulationError
from flstream.job import Job
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.simulator.files.job_match import check_same_job
from flstream.simulator.files.journal import Journal, read_journal
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.files.summary import Summary, Tally
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import AnyEvent, Evaluated, Metrics, RunResumed
from flstream.workflows.fedavg import evaluation_is_due

# A server whose launcher was killed ends as soon as it notices, but may be writing to the disk.
_PATIENCE_SECONDS = 30.0
# More damaged models than this are only counted.
_MOST_NAMED = 3


class Scores(NamedTuple):
    """What the sites found of the model of a round."""

    round: int
    metrics: Metrics


class ResumePoint(NamedTuple):
    """What a run that goes on has to know.

    Attributes:
        round: the last completed round whose model is sound; 0 is the initial model, and None says
            that it is to be built anew.
        checkpoint: that model; None without one.
        evaluated: whether its evaluation is done, and counts. It never is of round 0, which has
            none; nor where it was made only because the round was the last, and no longer is.
        is_finished: whether the run has nothing left to do.
        events: all that counts of what has happened, for a tally.
        evaluations: of the rounds up to this one, in order, for a rule that ends a job early.
        seconds: how long the run has been going on until now.
        leftovers: files of the run that have to go first: those of later rounds, temporary ones,
            and what only a run has that has ended.
        warnings: what was not found as it was left, a sentence each.
    """

    round: int | None
    checkpoint: Path | None
    evaluated: bool
    is_finished: bool
    events: Sequence[AnyEvent]
    evaluations: Sequence[Scores]
    seconds: float
    leftovers: Sequence[Path]
    warnings: Sequence[str]


def plan_resume(job: Job, run: RunDirectory) -> ResumePoint | None:
    """Find out where a run goes on.

    Nothing is changed yet but for a torn last line of the journal, which is cut off. The models are
    read from the newest on until one is sound, together with what the server's optimizer remembers,
    in ranges; so this takes as long as reading one, and 1 MiB of memory.

    Args:
        job: the job, which has to be that of the run: see
            :func:`~flstream.simulator.files.job_match.check_same_job`.
        run: the run directory, in use by this process and no other.

    Returns:
        None if nothing has happened in it yet, so that it is as good as new.

    Raises:
        UsageError: the run was made by another job.
        SimulationError: its journal is damaged or gone; or rounds were completed, but no model of
            theirs is left; or a process of it still writes to the journal.
    """
    if run.job_file.exists():
        check_same_job(job, run)
    # By then a server that has outlived its launcher has written its last event.
    EventLog(run.events, _PATIENCE_SECONDS).close()
    journal = read_journal(run.events)
    if journal.is_empty:
        _check_nothing_is_there(run)
        return None
    if journal.is_finished and journal.planned_rounds == job.rounds:
        return _point(journal, journal.last_round, run, journal.events(), is_finished=True)
    found, flaws = _last_sound(journal, run)
    is_due = found is not None and evaluation_is_due(job, found)
    return _point(
        journal,
        found,
        run,
        journal.events_until(found, evaluated=is_due),
        leftovers=run.leftovers(found),
        warnings=_explain(journal, found, flaws, run),
    )


def take_up(job: Job, run: RunDirectory, point: ResumePoint) -> Tally:
    """Begin to go on with a run: say so in its journal, and clear away what is in the way.

    It can itself be interrupted at any instant: the next plan then finds the same round.

    Returns:
        The tally of all that counts so far.
    """
    warnings = list(point.warnings)
    resumed = RunResumed(round=point.round, warnings=warnings, evaluated=point.evaluated)
    with EventLog(run.events) as log:
        log.write(resumed, durable=True)
    for path in point.leftovers:
        path.unlink(missing_ok=True)
    return Tally(job, [*point.events, resumed], point.seconds)


def final_summary(job: Job, run: RunDirectory, point: ResumePoint) -> Summary:
    """The summary of a run that has nothing left to do, as it is.

    A run that was killed between its end and its summary gets one from its events: all but the
    peaks of memory.
    """
    try:
        summary = msgspec.json.decode(run.summary.read_bytes(), type=Summary)
    except FileNotFoundError:
        summary = Tally(job, point.events, point.seconds).close({}, 0, 0.0)
        run.write(run.summary, summary.to_json())
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"{run.summary} cannot be read: {error}; remove it, and it is made again from the "
            "run's events"
        ) from error
    return summary


def _point(
    journal: Journal,
    number: int | None,
    run: RunDirectory,
    events: Sequence[AnyEvent],
    *,
    is_finished: bool = False,
    leftovers: Sequence[Path] = (),
    warnings: Sequence[str] = (),
) -> ResumePoint:
    evaluations = _evaluations(events)
    return ResumePoint(
        round=number,
        checkpoint=None if number is None else run.checkpoint(number),
        evaluated=any(scores.round == number for scores in evaluations),
        is_finished=is_finished,
        events=events,
        evaluations=evaluations,
        seconds=journal.seconds,
        leftovers=leftovers,
        warnings=warnings,
    )


def _evaluations(events: Sequence[AnyEvent]) -> list[Scores]:
    return [Scores(event.round, event.metrics) for event in events if isinstance(event, Evaluated)]


def _check_nothing_is_there(run: RunDirectory) -> None:
    """Refuse to begin again in a folder whose journal was lost, over the models that are there."""
    models = [path for path in run.leftovers(0) if path.suffix == ".safetensors"]
    if models:
        raise SimulationError(
            f"the run in {run.path} has models such as {models[0]}, but nothing in its journal "
            f"{run.events}; put that back from a copy, or leave out --resume to start a new run"
        )


def _last_sound(journal: Journal, run: RunDirectory) -> tuple[int | None, list[str]]:
    """The last round whose files are sound, and what is wrong with each later one, newest first."""
    flaws: list[str] = []
    last = -1 if journal.last_round is None else journal.last_round
    for number in range(last, -1, -1):
        flaw = _flaw(run.checkpoint(number), journal.digest(number))
        state = journal.optimizer_state(number)
        if flaw is None and state:
            # The next round would take it as it is, and come to other bits.
            flaw = _flaw(run.optimizer_state(number), state)
        if flaw is None:
            return number, flaws
        flaws.append(flaw)
    return None, flaws


def _flaw(path: Path, digest: str) -> str | None:
    """What is wrong with a file of a round, or None if its tensors have this digest."""
    try:
        found = body_digest(FileSource(path))
    except CheckpointError as error:
        return str(error)
    if found != digest:
        return f"{path} has the digest {found}, and had {digest} when it was written"
    return None


def _explain(
    journal: Journal, found: int | None, flaws: Sequence[str], run: RunDirectory
) -> list[str]:
    """Warn of models that cannot be used.

    Raises:
        SimulationError: there is none, and there were rounds: to do them all again is for the user
            to decide.
    """
    if not flaws:
        return []
    said = "; ".join(flaws[:_MOST_NAMED])
    if len(flaws) > _MOST_NAMED:
        said += f"; and {len(flaws) - _MOST_NAMED} more"
    if found is not None:
        return [f"the run went on from round {found} instead of {journal.last_round}: {said}"]
    if journal.last_round == 0:
        return [f"the initial model was built anew: {said}"]
    raise SimulationError(
        f"no model of the {journal.last_round} completed rounds of the run in {run.path} can be "
        f"used: {said}; put one back from a copy, or leave out --resume to start a new run"
    )
