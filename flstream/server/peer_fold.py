"""A fold in the process of a site: the server coordinates it, and reads no tensor.

An update lies where it was trained, and the worker that folds fetches it from there in the server's
place; or it is in a file, where sites share workers. The next model is a file that this worker has
made durable, and it offers it for the tasks that follow.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flstream.aggregation.optimizers import ServerOptimizer
from flstream.aggregation.update import CollectedUpdate, naming
from flstream.aggregation.update_body import LocalBody, RemoteBody
from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    DeadlineError,
    SimulationError,
    StreamingError,
    WorkerLostError,
)
from flstream.runs.model_files import OPTIMIZER
from flstream.server.cohort_fold import CohortFold, FoldedModel
from flstream.server.collector import PROGRESS_KEY
from flstream.server.updates import inline_record
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import Transfer, Warned
from flstream.text import MOST_QUOTED, shortened
from flstream.units import format_seconds
from flstream.worker.messages import Offered, SiteAnswer
from flstream.worker.peer_messages import Folded, Folding, FoldTask, Offer


def fold_at(fold: CohortFold, at: Sequence[str], round_number: int) -> FoldedModel:
    """Fold a cohort's updates in the process of a site into the next model, which is durable.

    If that process is lost, its own update is made again, and the next site folds.
    """
    context, pool, sites = fold.context, fold.context.pool, list(at)
    lost = dict[str, str]()
    while sites:
        for training in fold.to_fold.trainings:
            # The sites of the others train again: their workers have died.
            training.collected = {
                site: update
                for site, update in training.collected.items()
                if not isinstance(update.body, RemoteBody) or _worker_with(fold, update)
            }
        updates = fold.updates_left()
        # Before a worker is started for it, another site folds whose worker is there.
        site = min(sites, key=lambda name: pool.living(context.worker_of(name)) is None)
        sites.remove(site)
        try:
            worker = pool.ready(context.worker_of(site))
            folder = context.run.updates(fold.to_fold.trainings[0].number) / "next"
            path = folder / context.run.checkpoint(round_number).name
            walk = partial(_walk, fold, worker, path, round_number)
            _, folded = fold.fold_sound(updates, walk)
            fold.cost += sum(folded.costs.values(), start=Transfer())
            linked = time.monotonic()
            record = fold.store.link(fold.model, round_number, path, folded.digests)
        except AbortedError:
            raise
        except (StreamingError, WorkerLostError) as error:
            lost[site] = reason = shortened(str(error), MOST_QUOTED)
            pool.drop(context.worker_of(site))
            message = f"{site} was lost while it folded the updates of round {round_number}"
            context.emit(Warned(message=f"{message}: {reason}; the fold is done again"))
        else:
            shutil.rmtree(folder, ignore_errors=True)
            seconds = folded.checkpoint + time.monotonic() - linked
            return FoldedModel(record, seconds, at=site)
    reasons = "; ".join(f"{site}: {reason}" for site, reason in lost.items())
    raise SimulationError(
        f"no site is left to fold the updates of round {round_number}: {reasons}; "
        "see their logs, and go on with --resume"
    )


def _walk(
    fold: CohortFold,
    worker: WorkerHandle,
    path: Path,
    round_number: int,
    updates: Sequence[CollectedUpdate],
    step: int,
) -> Folded:
    """Ask a worker for the walk, and for a durable model."""
    store, model, optimizer = fold.store, fold.model, fold.optimizer
    assert optimizer is None or isinstance(optimizer, ServerOptimizer)
    base, most = store.source(model), fold.tasks.waits.progress
    state = None if optimizer is None else store.beside(model, OPTIMIZER)
    sites = [update.site for update in updates]
    task = FoldTask(
        base=str(base.path),
        path=str(path),
        metadata=store.metadata(model, round_number),
        updates=[_placed(fold, worker, update) for update in updates],
        rule=fold.rule,
        optimizer=optimizer,
        state=None if state is None else str(state.path),
        step=step,
        last={site: str(fold.context.run.last_model(site)) for site in sites if fold.keeps_last},
    )

    def note(folding: Folding) -> None:
        # Also of a site that is refused later: its file is another one now.
        fold.kept |= folding.kept
        fold.progress(folding.done)

    try:
        folded = worker.peers.ask(task, Folded, seconds=most, on_folding=note)
    except DeadlineError as error:
        assert most is not None
        raise SimulationError(
            f"nothing came of the fold at {worker.name} for {format_seconds(most)} "
            f"({PROGRESS_KEY}); see its log, or allow more"
        ) from error
    for update in updates:
        update.has_changed = update.site not in folded.unchanged
    fold.progress(base.layout.nbytes)
    return folded


def _placed(
    fold: CohortFold, worker: WorkerHandle, update: CollectedUpdate
) -> tuple[SiteAnswer, Offered | str]:
    """Return an update's facts and place, from which a worker fetches it in the server's place."""
    facts = SiteAnswer(update.site, update.weight, {}, update.params_type, partial=update.partial)
    if inline_record(update) is not None:
        (training,) = fold.to_fold.trainings_of(update.site)
        fold.update_store.files(training).store(update)
    if isinstance(update.body, LocalBody):
        return facts, str(update.body.path)
    with naming(update.site, StreamingError):
        if (owner := _worker_with(fold, update)) is None:
            raise ChannelClosedError("its process is gone")
        return facts, owner.peers.ask(Offer(worker.name, token=update.body.token), Offered)


def _worker_with(fold: CohortFold, update: CollectedUpdate) -> WorkerHandle | None:
    """Return the worker that has an update; None where it is gone, or was replaced."""
    assert isinstance(update.body, RemoteBody)
    worker = fold.context.pool.living(fold.context.worker_of(update.site))
    return worker if worker is not None and worker.up is update.body.receiver else None
