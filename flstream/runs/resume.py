"""The point where an interrupted run resumes: after the last effect whose model is sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.errors import ResumeRefusedError, SimulationError
from flstream.job import Job
from flstream.runs.history import History
from flstream.runs.job_match import check_same_job
from flstream.runs.journal import read_history, read_journal
from flstream.runs.needed_states import with_sound_states
from flstream.runs.retention import stored_rounds
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_states import set_aside_altered_states
from flstream.runs.sound_effects import SoundEffects, has_its_models, sound_effects
from flstream.runs.summary import Summary, summarize
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import EffectDone, RunResumed

# A server whose launcher was killed ends as soon as it notices, but may be writing to the disk.
_PATIENCE_SECONDS = 30.0


class ResumePoint(NamedTuple):
    """The point where a run resumes.

    Attributes:
        round: Round of the newest model that is sound; 0 is the initial model, and None says that
            it is to be built anew.
        effect: Number of the last effect that counts; 0 without one.
        is_finished: Whether the run has nothing left to do.
        seconds: How long the run has been going on until now.
        end: Length in bytes of the journal's lines that are kept.
        leftovers: Files of the run that have to go first: those of models that are void, temporary
            ones, and what only a run has that has ended.
        warnings: What was not found as it was left, a sentence each.
        initial: Digest of the initial model; None if it is to be built anew.
        records: The effects that count, in the order in which they were written.
        resumes: Earlier resumes whose lines are not kept, since no effect was done after them.
        until: Time at which the last sitting ended.
        stored: How many rounds have a checkpoint on disk.
    """

    round: int | None
    effect: int
    is_finished: bool
    seconds: float
    end: int = 0
    leftovers: Sequence[Path] = ()
    warnings: Sequence[str] = ()
    initial: str | None = None
    records: Sequence[EffectDone] = ()
    resumes: Sequence[RunResumed] = ()
    until: float = 0.0
    stored: int = 1


def plan_resume(job: Job, run: RunDirectory) -> ResumePoint | None:
    """Find out where a run goes on.

    Nothing is changed yet but for a torn last line of the journal, which is cut off. The models are
    read from the newest on until one is sound, together with what the server's optimizer remembers,
    in ranges; so this takes as long as reading one, and 1 MiB of memory. A run that is finished but
    lacks a model that it names, or has it damaged, goes on too: it makes that again.

    Args:
        job: The job, which has to be that of the run: see
            :func:`~flstream.runs.job_match.check_same_job`.
        run: The run directory, in use by this process and no other.

    Returns:
        None if nothing has happened in it yet, so that it is as good as new.

    Raises:
        UsageError: The run was made by another job.
        ResumeRefusedError: Its journal is damaged or gone; or rounds were completed, but no model
            of theirs is left; or a site's state that is needed is damaged or gone.
        SimulationError: A process of it still writes to the journal.
    """
    if run.job_file.exists():
        check_same_job(job, run)
    # By then a server that has outlived its launcher has written its last event.
    EventLog(run.events, _PATIENCE_SECONDS).close()
    try:
        history, effects, ends, resumes = read_journal(run.events)
    except SimulationError as error:
        raise ResumeRefusedError(str(error)) from error
    if history.is_empty:
        _check_nothing_is_there(run)
        return None
    is_finished = history.status == "finished" and history.planned_rounds == job.planned_rounds
    if is_finished and has_its_models(history, run):
        return _finished(history, effects)
    if effects and effects[-1].is_provisional and history.planned_rounds != job.planned_rounds:
        effects = effects[:-1]
    sound = sound_effects(effects, history.models, run)
    warnings = _explain(history, sound, run)
    records, is_there = with_sound_states(run, sound.records), sound.has_model
    effect = records[-1].effect if records else 0
    # Without even the initial model, all begins anew.
    models = [history.models[0]] if is_there else []
    models += [record.model for record in records if record.model is not None]
    end = ends[effect] if models else 0
    return ResumePoint(
        round=models[-1].round if models else None,
        effect=effect,
        is_finished=False,
        seconds=history.timeline.seconds,
        end=end,
        leftovers=run.leftovers(models, history.written),
        warnings=warnings,
        initial=models[0].digest if models else None,
        records=records,
        resumes=[event for place, event in resumes if place > end],
        until=history.timeline.sittings[-1][1],
        stored=len(stored_rounds(run)),
    )


def take_up(job: Job, run: RunDirectory, point: ResumePoint) -> History:
    """Cut the journal of a run after the last effect that is kept, and remove what came after.

    It can itself be interrupted at any instant: the next plan then finds the same round.

    Returns:
        The history of the run so far.
    """
    warnings = [
        *point.warnings,
        *set_aside_altered_states(run, job.clients.site_names, point.effect),
    ]
    # First the files: once their lines are cut off, the run does not know them for its own.
    for path in point.leftovers:
        path.unlink(missing_ok=True)
    run.discard_updates(after=point.effect)
    resumed = RunResumed(
        round=point.round, warnings=warnings, effect=point.effect, until=point.until
    )
    with EventLog(run.events, end=point.end) as log:
        log.write(*point.resumes, resumed, durable=True)
    return read_history(run.events)


def final_summary(run: RunDirectory, point: ResumePoint) -> Summary:
    """The summary of a run that has nothing left to do, as it is.

    A run that was killed between its end and its summary gets one from its events: all but the
    peaks of memory.
    """
    try:
        summary = msgspec.json.decode(run.summary.read_bytes(), type=Summary)
    except FileNotFoundError:
        summary = summarize(read_history(run.events))
        summary.wall_seconds = point.seconds
        run.write(run.summary, summary.to_json())
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"{run.summary} cannot be read: {error}; remove it, and it is made again from the "
            "run's events"
        ) from error
    return summary


def _finished(history: History, effects: Sequence[EffectDone]) -> ResumePoint:
    """The point of a run that has nothing left to do."""
    return ResumePoint(
        round=history.models[-1].round,
        effect=effects[-1].effect if effects else 0,
        is_finished=True,
        seconds=history.timeline.seconds,
    )


def _check_nothing_is_there(run: RunDirectory) -> None:
    """Refuse to begin again in a folder whose journal was lost, over the models that are there."""
    models = [path for path in run.models_found() if path.suffix == ".safetensors"]
    if models:
        raise ResumeRefusedError(
            f"the run in {run.path} has models such as {models[0]}, but nothing in its journal "
            f"{run.events}; put that back from a copy, or leave out --resume to start a new run"
        )


def _explain(history: History, sound: SoundEffects, run: RunDirectory) -> list[str]:
    """Warn of models that cannot be used.

    Raises:
        ResumeRefusedError: There is none, and there were rounds: to do them all again is for the
            user to decide.
    """
    if not sound.flaws:
        return []
    newest = history.models[-1]
    if sound.has_model:
        models = [record.model for record in sound.records if record.model is not None]
        model = models[-1] if models else history.models[0]
        if model.round == newest.round:
            places = f"model {model.version} of round {model.round} instead of {newest.version}"
        else:
            places = f"round {model.round} instead of {newest.round}"
        return [f"the run went on from {places}: {sound.listed}"]
    if newest.round == 0:
        return [f"the initial model was built anew: {sound.listed}"]
    raise ResumeRefusedError(
        f"no model of the {newest.round} completed rounds of the run in {run.path} can be "
        f"used: {sound.listed}; put one back from a copy, or leave out --resume to start a new run"
    )
