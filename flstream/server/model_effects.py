"""The effects that make models: folding updates and adopting one, doing it and replaying it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from flstream.aggregation.fold_rule import FoldRule, ServerStep, TensorFold
from flstream.errors import CheckpointError, WorkflowError
from flstream.job.bodies import MAIN, RESIDUAL
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.composed import arranged
from flstream.model.digests import body_digest
from flstream.model.joined import ZeroSource
from flstream.model.source import Source
from flstream.runs.model_files import BASE, body_file
from flstream.runs.results import FoldResult
from flstream.server.arguments import (
    check_adopted,
    check_fold,
    check_groups,
    check_model,
    fold_rules,
)
from flstream.server.cohort_fold import fold_cohort
from flstream.server.effects import Effect
from flstream.server.model_writer import model_metadata
from flstream.server.program_view import Model, Update
from flstream.server.training import UpdatesToFold
from flstream.telemetry.events import ModelRecord

if TYPE_CHECKING:
    from flstream.server.run_state import RunState


def fold(
    state: RunState,
    model: Model,
    updates: Sequence[Update],
    rule: FoldRule | None,
    bodies: Mapping[str, FoldRule],
    at: Sequence[str] | None,
    step: ServerStep | None,
    tensors: object = None,
) -> Model:
    """Fold updates into the next model; see :meth:`flstream.server.run.Run.fold`."""
    job = state.context.job
    check_model("fold", model)
    state.check_round("fold")
    store, code = state.store, None if tensors is None else TensorFold.of(tensors)
    rules = fold_rules(job, store.bodies(model), store.own_bodies(model), rule, bodies)
    if job.chooses_answers:
        updates = list(updates)
    to_fold = UpdatesToFold.of(updates).under(rules)
    to_fold.check_base(model)
    check_fold(job, to_fold, step, at)
    check_groups(job, state.context.rule, to_fold, step, at, code)
    if at is not None:
        if beside := store.bodies(model):
            raise WorkflowError(
                f"run.fold() was given at, and the body {beside[0]!r} lies beside the model, "
                "which the server's process alone folds; leave out at"
            )
        state.check_sites("fold", at)
        if state.in_flight:
            raise WorkflowError(
                f"run.fold() was given at, and the training of {next(iter(state.in_flight))} "
                "is in flight; take its answer from run.next() first, or leave out at"
            )
    arguments: dict[str, object] = {
        "model": [model.version, model.digest],
        "updates": to_fold.arguments,
    }
    if rules:
        arguments["rules"] = rules
    if at is not None:
        arguments["at"] = list(at)
    if step is not None:
        arguments["step"] = [step.name, step, list(step.moments)]
    if code is not None:
        arguments["tensors"] = list(code.plain)
    request = f"fold(model {model.version}, {to_fold.request})"

    do = partial(fold_cohort, state, model, to_fold, at=at or (), step=step, tensors=code)
    done = state.journal.once("fold", state.round, request, arguments, do, FoldResult)
    return _take(state, done, model, to_fold)


def adopt(state: RunState, updates: Sequence[Update]) -> Model:
    """Make one site's update the next model; see :meth:`flstream.server.run.Run.adopt`."""
    state.check_round("adopt")
    adopted = check_adopted(state.context.job, updates)
    to_fold = UpdatesToFold.of(adopted, "adopt")
    model = adopted[0].base
    if beside := state.store.bodies(model):
        raise WorkflowError(
            f"run.adopt() was given an update of a model with the body {beside[0]!r} beside "
            "it, of which a site sends a part of the fold alone; use run.fold()"
        )
    arguments = {"model": [model.version, model.digest], "updates": to_fold.arguments}
    request = f"adopt(model {model.version}, {to_fold.request})"

    do = partial(fold_cohort, state, model, to_fold, adopts=True)
    done = state.journal.once("adopt", state.round, request, arguments, do, FoldResult)
    return _take(state, done, model, to_fold)


def store(state: RunState, model: Model, path: Path) -> Model:
    """Make a file the next model; see :meth:`flstream.server.run.Run.store`."""
    check_model("store", model)
    state.check_round("store")
    source = None if state.context.host is None else _fitting(state, path, model)
    digest = "" if source is None else body_digest(source)
    arguments = {"model": [model.version, model.digest], "digest": digest}

    def do(number: int) -> tuple[None, ModelRecord]:
        assert source is not None
        file = state.writer.prepare(model, state.round)

        def make_durable() -> dict[str, str]:
            optimizer = state.writer.keep_state(model, file)
            write_checkpoint(file, source, model_metadata(state.store.source(model), state.round))
            return {MAIN: digest, **optimizer}

        return None, state.writer.finish(make_durable, state.round, model)

    done = state.journal.once("store", state.round, f"store({path.name})", arguments, do, NoneType)
    assert done.model is not None
    handle = state.store.add(done.model, done.number, is_verified=done.is_new)
    state.received.add_model(done.model.version, model.version, [])
    return handle


def merge(state: RunState, model: Model) -> Model:
    """Add a model's residual to its base; see :meth:`flstream.server.run.Run.merge`."""
    check_model("merge", model)
    state.check_round("merge")
    store, own = state.store, state.store.own_bodies(model)
    if RESIDUAL not in own:
        raise WorkflowError(
            "run.merge() was given a model without a residual beside it; begin with "
            f"run.initial_model({RESIDUAL}=...)"
        )

    def do(number: int) -> tuple[None, ModelRecord]:
        from flstream.aggregation.merged_base import Scaling, write_merged_base

        context, bodies = state.context, store.bodies_of(model)
        residual = bodies[RESIDUAL]
        assert isinstance(residual, FileSource)
        file = state.writer.prepare(model, state.round)

        def make_durable() -> dict[str, str]:
            digests = state.writer.keep_state(model, file)
            base = store.beside(model, BASE) or FileSource(context.job_base)
            scaling = Scaling.of(context.run.export_files / "adapter_config.json")
            digests[BASE] = write_merged_base(
                body_file(file, BASE), base, residual, scaling, context.expect_on
            )
            for name, body in bodies.items():
                source = ZeroSource(body.layout) if name == RESIDUAL else body
                digests[name] = write_checkpoint(body_file(file, name), source, {})
            context.run.publish(store.source(model).path, file)
            return {MAIN: model.digest, **digests}

        return None, state.writer.finish(make_durable, state.round, model)

    arguments = {"model": [model.version, model.digest]}
    request = f"merge(model {model.version})"
    done = state.journal.once("merge", state.round, request, arguments, do, NoneType)
    assert done.model is not None
    handle = store.add(done.model, done.number, is_verified=done.is_new, own=own)
    state.received.add_model(done.model.version, model.version, [])
    return handle


def _fitting(state: RunState, path: Path, model: Model) -> Source:
    """A file's tensors in the order of bodies, which must be those of a model."""
    try:
        source = arranged(FileSource(path))
        difference = state.store.source(model).layout.difference(source.layout)
    except CheckpointError as error:
        flaw = f"run.store() was given a file that is no model: {error}"
        raise WorkflowError(flaw) from error
    if difference:
        raise WorkflowError(
            f"run.store() was given {path}, which does not fit the run's model: {difference}"
        )
    return source


def _take(state: RunState, done: Effect[FoldResult], base: Model, to_fold: UpdatesToFold) -> Model:
    """Continue from a model on record, with all that its effect changed."""
    number, result, model, is_new = done
    assert model is not None
    own = state.store.own_bodies(base)
    handle = state.store.add(model, number, is_verified=is_new, host=result.at, own=own)
    state.received.add_model(model.version, base.version, to_fold.trainings)
    if state.trainings.has_started:
        state.trainings.started.give_late(handle)
    state.last_models |= {site: (digest, number) for site, digest in result.kept.items()}
    if state.private is not None and result.privacy is not None:
        state.private.take(result.privacy, state.round)
    if (training := to_fold.unread) is not None:
        assert result.train is not None
        state.trainings.take(training, result.train, number)
        training.is_folded = True
    if state.scoring.is_received(base, to_fold):
        state.warn(state.scoring.add_received(base, result.metrics))
    if state.totals is not None:
        # Scores of the model that was received are no facts of the one that is being made.
        is_received = state.site_code.is_received
        metrics = {} if is_received else result.metrics
        state.totals.folds.append(replace(result, metrics=metrics, train=None))
    if training is not None:
        # What sites kept in this effect that were refused goes back to what it was before, too.
        state.fleet.set_states({site: training.tasks[site].state for site in result.refused})
    state.fleet.note_failures(result.refused)
    state.settle_failures(result.weights)
    state.update_store.settle(to_fold, state.round, state.oldest_round)
    return handle
