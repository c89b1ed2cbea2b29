"""The play of a job's workflows: from the beginning, with what the journal knows replayed."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.debugging import code_failed, debugged_site, sentence
from flstream.errors import (
    FlstreamError,
    ResumeRefusedError,
    SimulationError,
    WorkflowError,
)
from flstream.runs.site_states import state_bytes
from flstream.server.collector import ResultCollector, SiteLost
from flstream.server.context import ServerContext
from flstream.server.disk import check_run, present_bytes
from flstream.server.effects import EffectFailedError, EffectJournal
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model
from flstream.server.run import Run
from flstream.server.run_state import RunState
from flstream.server.scoring import evaluator_failed
from flstream.server.stored_model import UnsoundModelError
from flstream.server.task_plan import plan_disk
from flstream.telemetry.events import (
    EffectDone,
    ModelRecord,
    Warned,
)
from flstream.telemetry.halts import halt_at
from flstream.text import brief_names
from flstream.units import format_bytes


def prepare(context: ServerContext) -> None:
    """Start the workers and the evaluator, and wait until they are ready.

    Raises:
        SimulationError: Too few of them are of any use, or the evaluator's code failed.
    """
    names = context.pool.names
    least = min(context.job.clients.min_updates or len(names), len(names))
    collector = ResultCollector("begin", names, least)

    def lose(lost: SiteLost) -> None:
        context.emit(lost.event(0))
        collector.fail(lost.site, lost.reason)

    def lose_evaluator(lost: SiteLost) -> None:
        context.emit(lost.event(0))
        raise evaluator_failed("no model can be scored", lost.reason)

    starting = context.pool.prepare(lose)
    if context.evaluator is not None:
        for _ in context.evaluator.pool.prepare(lose_evaluator):
            pass
    for _ in starting:
        pass


def play(
    context: ServerContext,
    initial: str,
    records: Sequence[EffectDone],
    *,
    order: str,
    is_built: bool,
) -> None:
    """Run the workflows of a job to their end.

    Args:
        context: The server.
        initial: Digest of the initial model.
        records: The effects that the journal knows, in order.
        order: Digest of the text for the order of the model's tensors.
        is_built: Whether the initial model was built now, by a process that has verified it.

    Raises:
        FlstreamError: The job failed; the message says why.
    """
    journal = EffectJournal(records, context.emit)
    models = [record.model for record in records if record.model is not None]
    store = ModelStore(context, models, order)
    state = RunState(context, journal, store)
    if state.private is not None:
        state.private.check_first_round()
    journal.before_sync = state.update_store.sync_updates
    record = ModelRecord(0, 0, 0, initial)
    # A number, and no model: a workflow decides how long the file of its first one stays.
    version = store.add(record, 0, is_verified=is_built).version
    nbytes = _check_disk(context, store, record, records)
    if small := state.fleet.leave_out_small(nbytes):
        memory = f"have not the memory for the model ({format_bytes(nbytes)})"
        state.warn([f"{brief_names(small)} {memory}, and are not asked (devices: memory)"])
    try:
        for place in range(len(context.job.stages)):
            version = _play_stage(state, place, version)
        if not journal.is_live:
            raise ResumeRefusedError(
                f"the workflow returned after effect {journal.asked}, and the run has done "
                f"{len(records)}; put back the workflow that has done them, or go back to the "
                "end of a round with --resume --from-round"
            )
        _finish(state, version)
    except UnsoundModelError as error:
        of_round = store.round_of(error.effect)
        last = (state.round if of_round is None else of_round) - 1
        whole = [number for number in context.run.stored_rounds if number <= last]
        before = f", or go back with --resume --from-round {max(whole)}" if whole else ""
        kind = SimulationError if journal.has_new else ResumeRefusedError
        raise kind(
            f"a file that is needed again cannot be used: {error.flaw}; put it back from a copy "
            f"and go on with --resume{before}"
        ) from error
    except ResumeRefusedError as error:
        if journal.has_new:  # the run has gone on, and fails
            raise SimulationError(str(error)) from error
        raise
    finally:
        if state.trainings.has_started:
            state.trainings.started.close()


def _play_stage(state: RunState, place: int, start: int) -> int:
    """Run one workflow from a version of the model, and return that which it ended with."""
    context = state.context
    stage = context.job.stages[place]
    is_last = place == len(context.job.stages) - 1
    state.begin_stage(place)
    face = Run
    if debugged_site() is not None:
        from flstream.server.debugged_run import DebuggedRun

        face = DebuggedRun
    run = face(state, stage.args, start, is_last)
    try:
        returned = stage.load_program()(run)
    except EffectFailedError as error:
        raise error.error from error
    except (FlstreamError, UnsoundModelError):
        raise
    except BaseException as error:
        # A defect of the workflow: the user gets a sentence, and the log the whole of it.
        code_failed(error)
        raise WorkflowError(
            f"the workflow {stage.name} failed: {sentence(error, stage.program_file)}; "
            "see server.log"
        ) from error
    if state.failure is not None:  # and the workflow has caught that all the same
        raise state.failure
    state.trainings.check_done()
    if state.trainings.has_started:
        state.trainings.started.cancel()
    state.end_stage(run.ended_early)
    if returned is None:
        context.emit(
            Warned(
                message=f"the workflow {stage.name} returned nothing, so it ended with its newest "
                "model; return the model that the run is to end with"
            )
        )
        return state.store.newest.record.version
    if not isinstance(returned, Model):
        raise WorkflowError(
            f"the workflow {stage.name} returned a {type(returned).__name__}; it must return the "
            "model that the run is to end with"
        )
    return returned.version


def _finish(state: RunState, version: int) -> None:
    """End the run with a model: its file gets its second name, and what waits is let go of."""
    store, run = state.store, state.context.run
    path = store.source(store.handle(version)).path
    halt_at("end")
    state.update_store.discard_files()
    run.publish(path, run.final_model)
    best, in_use = state.scoring.best_version, {version}
    if best is not None:
        in_use.add(best)
        try:
            source = store.source(store.handle(best))
        except UnsoundModelError as error:
            # To do all the rounds since again would change nothing but this name.
            state.context.emit(Warned(message=f"no {run.best_model.name}: {error.flaw}"))
        else:
            run.publish(source.path, run.best_model)
    store.retire(state.scoring.best_versions, in_use)


def _check_disk(
    context: ServerContext,
    store: ModelStore,
    initial: ModelRecord,
    records: Sequence[EffectDone],
) -> int:
    """Warn where the rounds to come will not all have their disk; return the model's bytes."""
    job, keep = context.job, context.job.checkpoints.keep
    staying = job.planned_rounds if keep == "all" else keep
    newest = [record.model for record in records if record.model is not None]
    done = newest[-1].round if newest else 0
    layout = store.layout(newest[-1] if newest else initial)
    warning = check_run(
        plan_disk(job, layout, job.sample_size, context.programs, base_bytes=context.base_bytes),
        context.run.path,
        done=done,
        stored=len(context.run.stored_rounds),
        present=present_bytes(context.run, done + 1) + store.superseded_bytes(done),
        # One for each model that stays, the one before them, and one that is being made.
        states=state_bytes(context.run, job.clients.site_names, staying + 2),
    )
    if warning is not None:
        context.emit(Warned(message=warning))
    return layout.nbytes
