"""The point where an interrupted run resumes: after an effect or a round."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.errors import ResumeRefusedError, SimulationError, UsageError
from flstream.job import Job
from flstream.runs.history import History
from flstream.runs.job_match import check_same_job
from flstream.runs.journal import JournalContent, read_history, read_journal
from flstream.runs.results import (
    FoldResult,
    NextResult,
    StateVersion,
    TrainResult,
    result_of,
)
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_states import check_states, set_aside_altered_states
from flstream.runs.sound_models import file_flaw, has_its_models, model_flaw
from flstream.runs.summary import Summary, summarize
from flstream.telemetry.event_log import EventLog, await_writer
from flstream.telemetry.events import (
    SERVER,
    UNSYNCED,
    EffectDone,
    ModelRecord,
    RunResumed,
)
from flstream.telemetry.exact import decode_record

# A server whose launcher was killed ends as soon as it notices, but may be writing to the disk.
_PATIENCE_SECONDS = 30.0


class ResumePoint(NamedTuple):
    """Point where a run resumes.

    Attributes:
        round: Round of the newest model that is kept; 0 is the initial model, and None says that it
            is to be built anew.
        effect: Number of the last effect that is kept; 0 without one.
        is_finished: Whether the run has nothing left to do.
        seconds: Running time of the run until now.
        end: Length in bytes of the journal's lines that are kept.
        leftovers: Files of the run that have to go first: those of models that are void, temporary
            ones, and what only a run has that has ended.
        warnings: Files that are not as the run left them, a sentence each.
        initial: Digest of the initial model; None if it is to be built anew.
        order: Digest of the text for the order of its tensors.
        records: The effects that are kept, in order.
        resumes: Earlier resumes whose lines are not kept, since no effect was done after them.
        until: Time at which the last sitting ended.
        base: Digest of the base that the sites have trained on; None without one.
    """

    round: int | None
    effect: int
    is_finished: bool
    seconds: float
    end: int = 0
    leftovers: Sequence[Path] = ()
    warnings: Sequence[str] = ()
    initial: str | None = None
    order: str = ""
    records: Sequence[EffectDone] = ()
    resumes: Sequence[RunResumed] = ()
    until: float = 0.0
    base: str | None = None


def plan_resume(job: Job, run: RunDirectory, from_round: int | None = None) -> ResumePoint | None:
    """Find the point where a run resumes.

    Nothing is changed yet. The newest model that is kept is read, with the bodies beside it and the
    sites' states, in ranges; so this takes as long as reading them, and 1 MiB of memory. A run that
    is finished but lacks a model that it names, or has it damaged, resumes too: it is given that
    name again.

    Args:
        job: The job, which has to be that of the run: see
            :func:`~flstream.runs.job_match.check_same_job`.
        run: The run directory, in use by this process and no other.
        from_round: Round whose end the run goes back to; None for its last effect.

    Returns:
        None if nothing has happened in it yet, so that it is as good as new.

    Raises:
        UsageError: The run was made by another job, or has no such round.
        ResumeRefusedError: Its journal is damaged or gone, or a model or a site's state that is
            needed is; the message names an earlier round that is whole.
        SimulationError: A process of it still writes to the journal.
    """
    if run.job_file.exists():
        check_same_job(job, run)
    # By then a server that has outlived its launcher has written its last event.
    await_writer(run.events, _PATIENCE_SECONDS)
    try:
        content = read_journal(run.events)
    except SimulationError as error:
        raise ResumeRefusedError(str(error)) from error
    history, effects, warnings = content.history, content.effects, list[str]()
    if from_round is not None:
        models = _models(history, effects)
        if not models or not 0 <= from_round <= models[-1].round:
            has = f"rounds 0 to {models[-1].round}" if models else "none"
            raise UsageError(
                f"--from-round {from_round} names no round of the run in {run.path}, which has "
                f"{has}; leave it out to resume where the run was cut off"
            )
        effects = _up_to(effects, from_round)
    elif history.is_empty:
        _check_nothing_is_there(run)
        run.furnish()
        return None
    elif (
        history.status == "finished"
        and history.facts.rounds == job.planned_rounds
        and has_its_models(history, run)
    ):
        return ResumePoint(history.models[-1].round, _last(effects), True, history.seconds)
    # The last round's evaluation does not count where that round is no longer the last.
    if effects and effects[-1].is_provisional and history.facts.rounds != job.planned_rounds:
        effects = effects[:-1]
    count, flaw = _before_lost_answers(run, effects)
    if flaw:
        warnings = [f"effect {effects[count].effect} and what followed is done again: {flaw}"]
        effects = effects[:count]
    models = _models(history, effects)
    if len(models) == 1 and (flaw := model_flaw(run, models[0], history.order)):
        # The initial model, which is built again to the same bits.
        warnings, models, effects = [f"the initial model was built anew: {flaw}"], [], []
    if models:
        _refuse_without(job, run, content, effects)
    end = content.ends[_last(effects)] if models else 0
    return ResumePoint(
        round=models[-1].round if models else None,
        effect=_last(effects),
        is_finished=False,
        seconds=history.seconds,
        end=end,
        leftovers=run.leftovers(models, history.written),
        warnings=warnings,
        initial=models[0].digest if models else None,
        order=history.order,
        records=effects,
        resumes=[event for place, event in content.resumes if place > end],
        until=history.sittings[-1][1],
        base=history.base.digest if history.base and models else None,
    )


def _models(history: History, effects: Sequence[EffectDone]) -> list[ModelRecord]:
    """Return the initial model, if any, and the models that effects have made."""
    models = [record.model for record in effects if record.model is not None]
    return [*history.models[:1], *models]


def _last(effects: Sequence[EffectDone]) -> int:
    return effects[-1].effect if effects else 0


def _up_to(effects: Sequence[EffectDone], number: int) -> Sequence[EffectDone]:
    """Return the effects up to the end of a round."""
    return [record for record in effects if record.round <= number]


def _before_lost_answers(run: RunDirectory, effects: Sequence[EffectDone]) -> tuple[int, str]:
    """Return how many effects precede the first with a lost update, and its flaw.

    That is one after the last effect that was synced.
    """
    synced = max((n for n, done in enumerate(effects, 1) if done.name not in UNSYNCED), default=0)
    for place in range(synced, len(effects)):
        for update in _updates_of(effects[place]):
            if flaw := file_flaw(update.path(run), update.digest):
                return place, flaw
    return len(effects), ""


class _WaitingUpdate(NamedTuple):
    """Update in a file, for a later effect to fold."""

    training: int  # number of the effect that asked for it
    site: str
    digest: str  # of its body
    base: int  # version of the model that it was trained from
    # Whether its file is whole wherever it is: that of an answer to a training that was started may
    # have been folded before it was synced.
    is_durable: bool

    def path(self, run: RunDirectory) -> Path:
        return run.updates(self.training) / f"{self.site}.safetensors"


def _trained(record: EffectDone) -> tuple[int, TrainResult, Collection[str]] | None:
    """Return a training's number and result, and its refused sites, if an effect has any."""
    match result_of(record):
        case TrainResult() as train:
            return record.effect, train, ()
        case NextResult(start, _, TrainResult() as train):
            return start, train, ()
        case FoldResult(train=TrainResult() as train, refused=refused):
            # Only what was trained in the fold itself goes back with an update that it refused.
            return record.effect, train, refused
    return None


def _updates_of(record: EffectDone) -> Iterator[_WaitingUpdate]:
    """Yield the updates that an effect has left in files."""
    if (trained := _trained(record)) is not None:
        number, train, _ = trained
        for site, update in train.updates.items():
            if update.digest:
                is_durable = record.name == "train"
                yield _WaitingUpdate(number, site, update.digest, train.base, is_durable)


def _flaw_after(
    job: Job, run: RunDirectory, content: JournalContent, effects: Sequence[EffectDone]
) -> str:
    """Describe what a run lacks to resume after an effect; empty if nothing.

    That is a model or an update; the states of sites are looked at by ``check_states``.
    """
    models, order = _models(content.history, effects), content.history.order
    if flaw := model_flaw(run, models[-1], order):
        return f"needs a model that cannot be used: {flaw}"
    check_states(run, _needed_states(effects))
    waiting = dict[tuple[int, str], _WaitingUpdate]()
    dropped = set[tuple[int, str]]()
    in_flight = dict[int, int]()  # the base of each training, by its effect
    for record in effects:
        for update in _updates_of(record):
            waiting[update.training, update.site] = update
        if record.model is not None:
            # The program may refer to them no more, and their files are gone then.
            dropped |= waiting.keys()
        elif record.name == "start":
            in_flight[record.effect] = msgspec.json.decode(record.result)
        elif record.name == "next":
            in_flight.pop(decode_record(record.result, NextResult).start, None)
    for record in content.effects[len(effects) :]:
        if isinstance(fold := result_of(record), FoldResult):
            dropped -= {(number, site) for number, sites in fold.updates for site in sites}
    # A later workflow of a list has cancelled what an earlier one left in flight.
    bases = set(in_flight.values()) if len(job.stages) == 1 else set()
    bases |= {update.base for key, update in waiting.items() if key not in dropped}
    for version in sorted(bases):
        if version < len(models) and (flaw := model_flaw(run, models[version], order)):
            return f"needs a model that sites were training that cannot be used: {flaw}"
    for key, update in waiting.items():
        is_needed = key not in dropped or (update.is_durable and update.path(run).exists())
        if is_needed and (flaw := file_flaw(update.path(run), update.digest)):
            return f"needs an update that cannot be used: {flaw}"
    return ""


def _needed_states(records: Sequence[EffectDone]) -> list[tuple[str, StateVersion]]:
    """Return the sites and versions of their states after some effects."""
    newest: dict[str, StateVersion] = {}
    for record in records:
        if (trained := _trained(record)) is not None:
            _, train, refused = trained
            newest |= {site: state for site, state in train.states.items() if site not in refused}
    return list(newest.items())


def _refuse_without(
    job: Job, run: RunDirectory, content: JournalContent, effects: Sequence[EffectDone]
) -> None:
    """Refuse to resume after some effects if a file is lacking; name a whole round."""

    def flaw_after(effects: Sequence[EffectDone]) -> str:
        try:
            flaw = _flaw_after(job, run, content, effects)
        except ResumeRefusedError as error:
            return str(error)
        step = "put it back from a copy, or leave out --resume to start a new run"
        return flaw and f"the run in {run.path} {flaw}; {step}"

    if not (message := flaw_after(effects)):
        return
    for number in range(_models(content.history, effects)[-1].round, -1, -1):
        if not flaw_after(_up_to(content.effects, number)):
            message += (
                f"; round {number} is whole, and --resume --from-round {number} goes back to its "
                "end"
            )
            break
    raise ResumeRefusedError(message)


def take_up(job: Job, run: RunDirectory, point: ResumePoint) -> History:
    """Cut a run's journal after the last kept effect, and remove later files.

    It can itself be interrupted at any instant: the next plan then finds the same round.

    Returns:
        The history of the run so far.
    """
    clients = job.clients
    warnings = [
        *point.warnings,
        *set_aside_altered_states(run, clients.site_names, point.effect),
        *run.mark_logs([*clients.worker_names, SERVER], clients.site_names, point.effect),
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
    """Return the summary of a run that has nothing left to do.

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
        raise ResumeRefusedError(
            f"{run.summary} cannot be read: {error}; remove it, and it is made again from the "
            "run's events"
        ) from error
    return summary


def _check_nothing_is_there(run: RunDirectory) -> None:
    """Refuse to overwrite the models of a folder whose journal was lost."""
    for path, file in run.checkpoint_files():
        if file.round > 0 and not file.is_temporary:
            raise ResumeRefusedError(
                f"the run in {run.path} has models such as {path}, but nothing in its journal "
                f"{run.events}; put that back from a copy, or leave out --resume to start a new run"
            )
